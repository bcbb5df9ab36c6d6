"""The evaluation of the Skip Graph thesis: chapter 3.4 and the analyses of chapters 3.2 and 4."""
