"""See wire/frames.py; not there where it could not be built."""

FORM: int

def json_columns(
    data: bytes,
    position: int,
    stop: int,
    count_max: int,
    window_max: int,
    windows_max: int,
    /,
) -> tuple[int, bytes, bytes, bytes, list[tuple[int, int]], int]: ...
def data_columns(
    data: bytes,
    position: int,
    stop: int,
    count_max: int,
    pairs_max: int,
    key_max: int,
    value_max: int,
    size_max: int,
    /,
) -> tuple[int, bytes, bytes, bytes, bytes, bytes, bytes, bool]: ...
