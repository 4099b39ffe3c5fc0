"""Lumberjack frames are turned into bytes and back, without any state, role or clock."""
