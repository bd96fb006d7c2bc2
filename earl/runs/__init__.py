"""What a run leaves on disk: its folder, its numbers (SQLite), its episodes (Parquet), its checkpoints."""
