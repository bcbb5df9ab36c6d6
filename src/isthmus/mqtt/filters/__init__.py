"""Topic names and filters: matching, covering, and finding the filters that match."""
