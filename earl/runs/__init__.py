"""The files of a run: its folder, its numbers (SQLite), its episodes (Parquet), its checkpoints."""
