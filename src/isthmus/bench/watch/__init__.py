"""What is watched while a run is measured, and what gave way first."""
