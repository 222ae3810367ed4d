"""Files: archives, the JSON codec, schemas, locks, checkpoints, and what an audit reads."""
