"""Coverage-guided fuzzing of the decoders, out of band."""
