"""Multi-key Skip Graph: range routing among nodes (thesis, chapters 2.2.4 to 4.1)."""
