/* Finds whole frames in octets: the compiled form of the two loops of scan.py in which a reader
 * spends its time.  scan.py is the reference, says what the functions mean, and does the work
 * where this module was not built; the tests hold both to the same answers.
 *
 * Octets are peers': a length among them is any number below 2^32.  So places and limits are
 * `long long` on every machine.  No place is above 2^31 + 2^32 + 10, and no sum or difference of
 * places overflows.
 */

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>

#include <stdint.h>
#include <string.h>

/* What the functions take and give; scan.py wants the same number.  Raise both together. */
enum { FORM = 3 };

enum { HEADER_OCTETS = 10, LENGTH_OCTETS = 4, PAIRS_MAX = 64, FIRST_OCTETS = 1024,
       FRAMES_AHEAD = 6 };

/* Octets which are gathered. */
typedef struct {
    unsigned char *octets;
    size_t size, room;
} Gathered;

static int
gather(Gathered *into, const void *octets, size_t size)
{
    if (!size)
        return 0;
    if (into->size + size > into->room) {
        size_t room = into->room ? into->room : FIRST_OCTETS;
        while (room < into->size + size)
            room *= 2;
        void *larger = PyMem_Realloc(into->octets, room);
        if (!larger) {
            PyErr_NoMemory();
            return -1;
        }
        into->octets = larger;
        into->room = room;
    }
    memcpy(into->octets + into->size, octets, size);
    into->size += size;
    return 0;
}

static int
gather_number(Gathered *into, uint32_t number)
{
    return gather(into, &number, sizeof number);
}

/* Bounds are signed 32-bit numbers for Arrow; `are_within` keeps larger ones away. */
static int
gather_bound(Gathered *into, size_t bound)
{
    return gather_number(into, (uint32_t)bound);
}

static PyObject *
taken(Gathered *from)
{
    return PyBytes_FromStringAndSize((char *)from->octets, (Py_ssize_t)from->size);
}

static uint32_t
number_at(const unsigned char *octets)
{
    return (uint32_t)octets[0] << 24 | (uint32_t)octets[1] << 16 | (uint32_t)octets[2] << 8
           | octets[3];
}

/* Whether a frame's version and type stand at the position; 0 with an exception set if not. */
static int
are_within(const Py_buffer *octets, long long position, long long stop)
{
    if (octets->len > INT32_MAX) {
        PyErr_SetString(PyExc_OverflowError, "more octets than 31-bit places can tell apart");
        return 0;
    }
    if (position < 0 || position > octets->len - 2 || stop > octets->len) {
        PyErr_SetString(PyExc_ValueError, "positions outside of the octets");
        return 0;
    }
    return 1;
}

/* 1 for UTF-8, 0 for what is none, -1 with an exception set. */
static int
is_utf8(const unsigned char *octets, size_t size)
{
    size_t at = 0;
    for (; at + 8 <= size; at += 8) {
        uint64_t word;
        memcpy(&word, octets + at, 8);
        if (word & UINT64_C(0x8080808080808080))
            break;
    }
    while (at < size && octets[at] < 0x80)
        at++;
    if (at == size)
        return 1;
    PyObject *text = PyUnicode_DecodeUTF8((const char *)octets, (Py_ssize_t)size, NULL);
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
fetch(const unsigned char *octets, long long position, long long end)
{
#ifdef __GNUC__
    if (position < end)
        __builtin_prefetch(octets + position);
#endif
}

/* One text of a pair: where it stands. */
typedef struct {
    const unsigned char *octets;
    uint32_t size;
} Text;

static PyObject *
json_columns(PyObject *module, PyObject *arguments)
{
    Py_buffer given;
    long long position, stop, count_max;
    if (!PyArg_ParseTuple(arguments, "y*LLL", &given, &position, &stop, &count_max))
        return NULL;
    const unsigned char *octets = given.buf;
    const long long start = position, end = given.len;
    long long size = 0, needed = 0;
    Gathered sequences = {0}, bounds = {0};
    PyObject *bodies = NULL, *found_sequences = NULL, *found_bounds = NULL, *result = NULL;
    if (!are_within(&given, position, stop) || gather_bound(&bounds, 0))
        goto done;
    const unsigned char version = octets[position], kind = octets[position + 1];
    for (; count_max > 0 && position < stop && position + HEADER_OCTETS <= end; count_max--) {
        const unsigned char *frame = octets + position;
        if (frame[0] != version || frame[1] != kind)
            break;
        const int64_t sequence = number_at(frame + 2);
        const long long length = number_at(frame + 6), whole = HEADER_OCTETS + length;
        if (whole > end - position) {
            needed = whole;
            break;
        }
        position += whole;
        size += length;
        if (gather(&sequences, &sequence, sizeof sequence) || gather_bound(&bounds, (size_t)size))
            goto done;
        /* The next headers stand there if the next frames are about as large as this one. */
        fetch(octets, position + FRAMES_AHEAD * whole, end);
    }
    found_sequences = taken(&sequences);
    found_bounds = taken(&bounds);
    bodies = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)size);
    if (!found_sequences || !found_bounds || !bodies)
        goto done;
    char *to = PyBytes_AsString(bodies);
    for (long long at = start; at < position;) {
        const size_t length = number_at(octets + at + 6);
        at += HEADER_OCTETS;
        memcpy(to, octets + at, length);
        to += length;
        at += (long long)length;
    }
    result = Py_BuildValue("(LOOOL)", position, found_sequences, found_bounds, bodies, needed);
done:
    Py_XDECREF(found_sequences);
    Py_XDECREF(found_bounds);
    Py_XDECREF(bodies);
    PyMem_Free(sequences.octets);
    PyMem_Free(bounds.octets);
    PyBuffer_Release(&given);
    return result;
}

/* Read the text at *position and go behind it: 1 if it is whole, within its limit and UTF-8. */
static int
read_text(const unsigned char *octets, long long end, long long *position, long long size_max,
          Text *text)
{
    if (end - *position < LENGTH_OCTETS)
        return 0;
    text->size = number_at(octets + *position);
    text->octets = octets + *position + LENGTH_OCTETS;
    if (text->size > size_max || text->size > end - *position - LENGTH_OCTETS)
        return 0;
    *position += LENGTH_OCTETS + (long long)text->size;
    return is_utf8(text->octets, text->size);
}

static int
is_among(const Text *text, const Text *others, uint32_t count)
{
    for (uint32_t row = 0; row < count; row++)
        if (others[row].size == text->size
            && !memcmp(others[row].octets, text->octets, text->size))
            return 1;
    return 0;
}

static PyObject *
data_columns(PyObject *module, PyObject *arguments)
{
    Py_buffer given;
    long long position, stop, count_max, pairs_max, key_max, value_max, size_max;
    if (!PyArg_ParseTuple(arguments, "y*LLLLLLL", &given, &position, &stop, &count_max, &pairs_max,
                          &key_max, &value_max, &size_max))
        return NULL;
    const unsigned char *octets = given.buf;
    const long long end = given.len;
    enum { SEQUENCES, PAIRS, KEY_BOUNDS, KEYS, VALUE_BOUNDS, VALUES, COLUMNS };
    Gathered columns[COLUMNS] = {{0}};
    Text keys[PAIRS_MAX], values[PAIRS_MAX];
    size_t pairs = 0;
    int unusual = 0;
    PyObject *result = NULL, *found[COLUMNS] = {0};
    if (!are_within(&given, position, stop))
        goto done;
    if (pairs_max > PAIRS_MAX)
        pairs_max = PAIRS_MAX;
    const unsigned char version = octets[position], kind = octets[position + 1];
    if (gather_bound(&columns[PAIRS], 0) || gather_bound(&columns[KEY_BOUNDS], 0)
        || gather_bound(&columns[VALUE_BOUNDS], 0))
        goto done;
    for (; count_max > 0 && position < stop && position + HEADER_OCTETS <= end; count_max--) {
        const unsigned char *frame = octets + position;
        if (frame[0] != version || frame[1] != kind)
            break;
        uint32_t count = number_at(frame + 6);
        long long at = position + HEADER_OCTETS;
        unusual = count > pairs_max;
        for (uint32_t pair = 0; !unusual && pair < count; pair++) {
            int usual = read_text(octets, end, &at, key_max, &keys[pair]);
            if (usual > 0)
                usual = read_text(octets, end, &at, value_max, &values[pair]);
            if (usual < 0)
                goto done;
            unusual = !usual || is_among(&keys[pair], keys, pair);
        }
        if (unusual || at - position > size_max) {
            unusual = 1;
            break;
        }
        for (uint32_t pair = 0; pair < count; pair++) {
            if (gather(&columns[KEYS], keys[pair].octets, keys[pair].size)
                || gather_bound(&columns[KEY_BOUNDS], columns[KEYS].size)
                || gather(&columns[VALUES], values[pair].octets, values[pair].size)
                || gather_bound(&columns[VALUE_BOUNDS], columns[VALUES].size))
                goto done;
        }
        pairs += count;
        position = at;
        if (gather_number(&columns[SEQUENCES], number_at(frame + 2))
            || gather_bound(&columns[PAIRS], pairs))
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
        PyMem_Free(columns[column].octets);
    }
    PyBuffer_Release(&given);
    return result;
}

static PyMethodDef functions[] = {
    {"json_columns", json_columns, METH_VARARGS, "See scan.py."},
    {"data_columns", data_columns, METH_VARARGS, "See scan.py."},
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
    PyModuleDef_HEAD_INIT, "_scan", "See scan.py.", 0, functions, slots, NULL, NULL, NULL,
};

PyMODINIT_FUNC
PyInit__scan(void)
{
    return PyModuleDef_Init(&definition);
}
