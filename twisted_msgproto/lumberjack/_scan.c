/* Finds whole frames in bytes: the two loops in which a reader spends its time.  wire/frames.py says
 * what the functions mean.  Where this module was not built, it and wire/partial.py do the work; the
 * tests hold both to the same answers.
 *
 * Bytes are peers': a length among them is any number below 2^32.  So places and limits are
 * `long long` on every machine.  No place is above 2^31 + 2^32 + 10, and no sum or difference of
 * places overflows.
 */

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>

#include <stdint.h>
#include <string.h>

/* What the functions take and give; wire/frames.py wants the same number.  Raise both together. */
enum { FORM = 5 };

enum { HEADER_BYTES = 10, WINDOW_BYTES = 6, LENGTH_BYTES = 4, PAIRS_MAX = 64, FIRST_BYTES = 1024,
       FRAMES_AHEAD = 6 };

/* Bytes that are put together, piece by piece. */
typedef struct {
    unsigned char *data;
    size_t size, room;
} ByteBuilder;

static int
append(ByteBuilder *into, const void *data, size_t size)
{
    if (!size)
        return 0;
    if (into->size + size > into->room) {
        size_t room = into->room ? into->room : FIRST_BYTES;
        while (room < into->size + size)
            room *= 2;
        void *larger = PyMem_Realloc(into->data, room);
        if (!larger) {
            PyErr_NoMemory();
            return -1;
        }
        into->data = larger;
        into->room = room;
    }
    memcpy(into->data + into->size, data, size);
    into->size += size;
    return 0;
}

/* Bounds are signed 32-bit numbers for Arrow; `are_within` keeps larger ones away. */
static int
append_bound(ByteBuilder *into, size_t bound)
{
    const int32_t number = (int32_t)bound;
    return append(into, &number, sizeof number);
}

static PyObject *
taken(ByteBuilder *from)
{
    return PyBytes_FromStringAndSize((char *)from->data, (Py_ssize_t)from->size);
}

static uint32_t
number_at(const unsigned char *data)
{
    return (uint32_t)data[0] << 24 | (uint32_t)data[1] << 16 | (uint32_t)data[2] << 8
           | data[3];
}

/* Whether a frame's version and type stand at the position; 0 with an exception set if not. */
static int
are_within(const Py_buffer *data, long long position, long long stop)
{
    if (data->len > INT32_MAX) {
        PyErr_SetString(PyExc_OverflowError, "more bytes than 31-bit places can tell apart");
        return 0;
    }
    if (position < 0 || position > data->len - 2 || stop > data->len) {
        PyErr_SetString(PyExc_ValueError, "positions outside of the bytes");
        return 0;
    }
    return 1;
}

/* 1 for UTF-8, 0 for what is none, -1 with an exception set. */
static int
is_utf8(const unsigned char *data, size_t size)
{
    size_t at = 0;
    for (; at + 8 <= size; at += 8) {
        uint64_t word;
        memcpy(&word, data + at, 8);
        if (word & UINT64_C(0x8080808080808080))
            break;
    }
    while (at < size && data[at] < 0x80)
        at++;
    if (at == size)
        return 1;
    PyObject *text = PyUnicode_DecodeUTF8((const char *)data, (Py_ssize_t)size, NULL);
    if (text) {
        Py_DECREF(text);
        return 1;
    }
    if (!PyErr_ExceptionMatches(PyExc_UnicodeDecodeError))
        return -1;
    PyErr_Clear();
    return 0;
}

/* Have the processor fetch what will be read soon; a hint, which may be wrong. */
static void
fetch(const unsigned char *data, long long position, long long end)
{
#ifdef __GNUC__
    if (position < end)
        __builtin_prefetch(data + position);
#endif
}

/* One text of a pair: where it stands. */
typedef struct {
    const unsigned char *data;
    uint32_t size;
} Text;

/* Where a W frame stands among J frames, and what it announces. */
static int
append_window(PyObject *windows, Py_ssize_t row, long long size)
{
    PyObject *window = Py_BuildValue("(nL)", row, size);
    int failed = !window || PyList_Append(windows, window);
    Py_XDECREF(window);
    return failed;
}

/* The J frames between the positions, W frames among them, as columns; 0 with an exception set. */
static int
fill_columns(const unsigned char *data, long long position, long long end, Py_ssize_t count,
             long long size, PyObject *columns[3])
{
    columns[0] = PyBytes_FromStringAndSize(NULL, count * (Py_ssize_t)sizeof(int64_t));
    columns[1] = PyBytes_FromStringAndSize(NULL, (count + 1) * (Py_ssize_t)sizeof(int32_t));
    columns[2] = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)size);
    if (!columns[0] || !columns[1] || !columns[2])
        return 0;
    char *sequences = PyBytes_AsString(columns[0]), *bounds = PyBytes_AsString(columns[1]);
    char *const bodies = PyBytes_AsString(columns[2]), *body = bodies;
    memset(bounds, 0, sizeof(int32_t));
    while (position < end) {
        const unsigned char *frame = data + position;
        if (frame[1] == 'W') {
            position += WINDOW_BYTES;
            continue;
        }
        const int64_t sequence = number_at(frame + 2);
        const size_t length = number_at(frame + 6);
        memcpy(sequences, &sequence, sizeof sequence);
        sequences += sizeof sequence;
        memcpy(body, frame + HEADER_BYTES, length);
        body += length;
        const int32_t bound = (int32_t)(body - bodies);
        bounds += sizeof bound;
        memcpy(bounds, &bound, sizeof bound);
        position += HEADER_BYTES + (long long)length;
    }
    return 1;
}

static PyObject *
json_columns(PyObject *module, PyObject *arguments)
{
    Py_buffer given;
    long long start, stop, count_max, window_max, windows_max;
    if (!PyArg_ParseTuple(arguments, "y*LLLLL", &given, &start, &stop, &count_max, &window_max,
                          &windows_max))
        return NULL;
    const unsigned char *data = given.buf;
    const long long end = given.len;
    long long position = start, size = 0, needed = 0;
    Py_ssize_t count = 0;
    PyObject *columns[3] = {0}, *result = NULL, *windows = PyList_New(0);
    if (!windows || !are_within(&given, position, stop))
        goto done;
    const unsigned char version = data[position];
    while (count < count_max && position < stop && position + HEADER_BYTES <= end) {
        const unsigned char *frame = data + position;
        if (frame[0] != version)
            break;
        if (frame[1] == 'W') {
            const long long window = number_at(frame + 2);
            if (window < 1 || window > window_max || PyList_Size(windows) >= windows_max)
                break;
            if (append_window(windows, count, window))
                goto done;
            position += WINDOW_BYTES;
            continue;
        }
        if (frame[1] != 'J')
            break;
        const long long length = number_at(frame + 6), whole = HEADER_BYTES + length;
        if (whole > end - position) {
            needed = whole;
            break;
        }
        position += whole;
        size += length;
        count++;
        /* The next headers stand there if the next frames are about as large as this one. */
        fetch(data, position + FRAMES_AHEAD * whole, end);
    }
    if (fill_columns(data, start, position, count, size, columns))
        result = Py_BuildValue("(LOOOOL)", position, columns[0], columns[1], columns[2], windows,
                               needed);
done:
    for (int column = 0; column < 3; column++)
        Py_XDECREF(columns[column]);
    Py_XDECREF(windows);
    PyBuffer_Release(&given);
    return result;
}

/* Read the text at *position and go behind it: 1 if it is whole, within its limit and UTF-8. */
static int
read_text(const unsigned char *data, long long end, long long *position, long long size_max,
          Text *text)
{
    if (end - *position < LENGTH_BYTES)
        return 0;
    text->size = number_at(data + *position);
    text->data = data + *position + LENGTH_BYTES;
    if (text->size > size_max || text->size > end - *position - LENGTH_BYTES)
        return 0;
    *position += LENGTH_BYTES + (long long)text->size;
    return is_utf8(text->data, text->size);
}

static int
is_among(const Text *text, const Text *others, uint32_t count)
{
    for (uint32_t row = 0; row < count; row++)
        if (others[row].size == text->size
            && !memcmp(others[row].data, text->data, text->size))
            return 1;
    return 0;
}

static PyObject *
data_columns(PyObject *module, PyObject *arguments)
{
    Py_buffer given;
    long long position, stop, count_max, pairs_stop, pairs_max, key_max, value_max, size_max;
    if (!PyArg_ParseTuple(arguments, "y*LLLLLLLL", &given, &position, &stop, &count_max,
                          &pairs_stop, &pairs_max, &key_max, &value_max, &size_max))
        return NULL;
    const unsigned char *data = given.buf;
    const long long end = given.len;
    enum { SEQUENCES, PAIRS, KEY_BOUNDS, KEYS, VALUE_BOUNDS, VALUES, COLUMNS };
    ByteBuilder columns[COLUMNS] = {{0}};
    Text keys[PAIRS_MAX], values[PAIRS_MAX];
    long long pairs = 0;
    int unusual = 0;
    PyObject *result = NULL, *found[COLUMNS] = {0};
    if (!are_within(&given, position, stop))
        goto done;
    if (pairs_max > PAIRS_MAX)
        pairs_max = PAIRS_MAX;
    const unsigned char version = data[position], kind = data[position + 1];
    if (append_bound(&columns[PAIRS], 0) || append_bound(&columns[KEY_BOUNDS], 0)
        || append_bound(&columns[VALUE_BOUNDS], 0))
        goto done;
    for (; count_max > 0 && position < stop && pairs < pairs_stop
           && position + HEADER_BYTES <= end;
         count_max--) {
        const unsigned char *frame = data + position;
        if (frame[0] != version || frame[1] != kind)
            break;
        uint32_t count = number_at(frame + 6);
        long long at = position + HEADER_BYTES;
        unusual = count > pairs_max;
        for (uint32_t pair = 0; !unusual && pair < count; pair++) {
            int usual = read_text(data, end, &at, key_max, &keys[pair]);
            if (usual > 0)
                usual = read_text(data, end, &at, value_max, &values[pair]);
            if (usual < 0)
                goto done;
            unusual = !usual || is_among(&keys[pair], keys, pair);
        }
        if (unusual || at - position > size_max) {
            unusual = 1;
            break;
        }
        for (uint32_t pair = 0; pair < count; pair++) {
            if (append(&columns[KEYS], keys[pair].data, keys[pair].size)
                || append_bound(&columns[KEY_BOUNDS], columns[KEYS].size)
                || append(&columns[VALUES], values[pair].data, values[pair].size)
                || append_bound(&columns[VALUE_BOUNDS], columns[VALUES].size))
                goto done;
        }
        pairs += count;
        position = at;
        const int64_t sequence = number_at(frame + 2);
        if (append(&columns[SEQUENCES], &sequence, sizeof sequence)
            || append_bound(&columns[PAIRS], (size_t)pairs))
            goto done;
    }
    for (int column = 0; column < COLUMNS; column++)
        if (!(found[column] = taken(&columns[column])))
            goto done;
    result = Py_BuildValue("(LOOOOOOO)", position, found[SEQUENCES], found[PAIRS],
                           found[KEY_BOUNDS], found[KEYS], found[VALUE_BOUNDS], found[VALUES],
                           unusual ? Py_True : Py_False);
done:
    for (int column = 0; column < COLUMNS; column++) {
        Py_XDECREF(found[column]);
        PyMem_Free(columns[column].data);
    }
    PyBuffer_Release(&given);
    return result;
}

static PyMethodDef functions[] = {
    {"json_columns", json_columns, METH_VARARGS, "See wire/frames.py."},
    {"data_columns", data_columns, METH_VARARGS, "See wire/frames.py."},
    {NULL, NULL, 0, NULL},
};

static int
add_form(PyObject *module)
{
    return PyModule_AddIntConstant(module, "FORM", FORM);
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, add_form},
    {0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_scan", "See wire/frames.py.", 0, functions, slots, NULL, NULL, NULL,
};

PyMODINIT_FUNC
PyInit__scan(void)
{
    return PyModuleDef_Init(&definition);
}
