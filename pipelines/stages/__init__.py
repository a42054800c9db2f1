"""One thin command per DVC stage."""
