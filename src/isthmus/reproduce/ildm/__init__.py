"""The evaluation of the ILDM paper."""
