"""Spark: sessions, clusters, the job."""
