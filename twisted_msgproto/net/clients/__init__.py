"""The clients of all protocols share these modules."""
