/* Cuts packed columns out of the buffer they came in: the compiled form of the loops of packed.py,
 * which is the reference, says what the functions mean, and does the work where this module was
 * not built; the tests hold both to the same answers.
 */

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>

#include <stdint.h>
#include <string.h>

/* What the functions take and give; packed.py wants the same number.  Raise both together. */
enum { FORM = 1 };

enum { NUMBER_OCTETS = 4 };

/* Rows as they are given: a buffer, and where each row begins and the last one ends. */
typedef struct {
    Py_buffer octets, bounds;
    Py_ssize_t count;
} Rows;

static const unsigned char *
octets_of(const Rows *rows)
{
    return rows->octets.buf;
}

static int32_t
bound(const Rows *rows, Py_ssize_t row)
{
    int32_t place; /* the buffer need not be aligned */
    memcpy(&place, (const char *)rows->bounds.buf + row * (Py_ssize_t)sizeof place, sizeof place);
    return place;
}

/* Whether each row stands in the octets and has so many of them; 0 with an exception set if not. */
static int
are_rows(Rows *rows, Py_ssize_t least)
{
    rows->count = rows->bounds.len / (Py_ssize_t)sizeof(int32_t) - 1;
    int good = rows->count >= 0 && least >= 0 && bound(rows, 0) >= 0
               && bound(rows, rows->count) <= rows->octets.len;
    for (Py_ssize_t row = 0; good && row < rows->count; row++)
        good = (Py_ssize_t)bound(rows, row + 1) - bound(rows, row) >= least;
    if (!good)
        PyErr_SetString(PyExc_ValueError, "these are not the bounds of such rows");
    return good;
}

static void
release(Rows *rows)
{
    PyBuffer_Release(&rows->octets);
    PyBuffer_Release(&rows->bounds);
}

static PyObject *
cut(PyObject *module, PyObject *arguments)
{
    Rows rows;
    Py_ssize_t skip;
    if (!PyArg_ParseTuple(arguments, "y*y*n", &rows.octets, &rows.bounds, &skip))
        return NULL;
    PyObject *bounds = NULL, *values = NULL, *result = NULL;
    if (!are_rows(&rows, skip))
        goto done;
    const Py_ssize_t count = rows.count;
    values = PyBytes_FromStringAndSize(
        NULL, (Py_ssize_t)bound(&rows, count) - bound(&rows, 0) - count * skip);
    bounds = PyBytes_FromStringAndSize(NULL, (count + 1) * (Py_ssize_t)sizeof(int32_t));
    if (!values || !bounds)
        goto done;
    char *to = PyBytes_AsString(values), *places = PyBytes_AsString(bounds);
    int32_t place = 0;
    memcpy(places, &place, sizeof place);
    for (Py_ssize_t row = 0; row < count; row++) {
        const Py_ssize_t start = bound(&rows, row) + skip;
        const size_t size = (size_t)(bound(&rows, row + 1) - start);
        memcpy(to + place, octets_of(&rows) + start, size);
        place += (int32_t)size;
        memcpy(places += sizeof place, &place, sizeof place);
    }
    result = PyTuple_Pack(2, values, bounds);
done:
    Py_XDECREF(values);
    Py_XDECREF(bounds);
    release(&rows);
    return result;
}

static PyObject *
numbers(PyObject *module, PyObject *arguments)
{
    Rows rows;
    Py_ssize_t at;
    if (!PyArg_ParseTuple(arguments, "y*y*n", &rows.octets, &rows.bounds, &at))
        return NULL;
    PyObject *result = NULL;
    if (at < 0 || at > PY_SSIZE_T_MAX - NUMBER_OCTETS) {
        PyErr_SetString(PyExc_ValueError, "no place for a number");
        goto done;
    }
    if (!are_rows(&rows, at + NUMBER_OCTETS))
        goto done;
    result = PyBytes_FromStringAndSize(NULL, rows.count * (Py_ssize_t)sizeof(int64_t));
    if (!result)
        goto done;
    char *to = PyBytes_AsString(result);
    for (Py_ssize_t row = 0; row < rows.count; row++, to += sizeof(int64_t)) {
        const unsigned char *from = octets_of(&rows) + bound(&rows, row) + at;
        const int64_t number = (int64_t)from[0] << 24 | (int64_t)from[1] << 16
                               | (int64_t)from[2] << 8 | from[3];
        memcpy(to, &number, sizeof number);
    }
done:
    release(&rows);
    return result;
}

static PyObject *
shift(PyObject *module, PyObject *arguments)
{
    Py_buffer given;
    long long by;
    if (!PyArg_ParseTuple(arguments, "y*L", &given, &by))
        return NULL;
    const Py_ssize_t count = given.len / (Py_ssize_t)sizeof(int32_t);
    PyObject *result = PyBytes_FromStringAndSize(NULL, count * (Py_ssize_t)sizeof(int32_t));
    const char *from = given.buf;
    char *to = result ? PyBytes_AsString(result) : NULL;
    for (Py_ssize_t row = 0; result && row < count; row++, from += sizeof(int32_t), to += sizeof(int32_t)) {
        int32_t place;
        memcpy(&place, from, sizeof place);
        if (by < INT32_MIN - (long long)place || by > INT32_MAX - (long long)place) {
            PyErr_SetString(PyExc_OverflowError, "places are signed 32-bit integers");
            Py_CLEAR(result);
            break;
        }
        place = (int32_t)(place + by);
        memcpy(to, &place, sizeof place);
    }
    PyBuffer_Release(&given);
    return result;
}

static PyMethodDef functions[] = {
    {"cut", cut, METH_VARARGS, "See packed.py."},
    {"numbers", numbers, METH_VARARGS, "See packed.py."},
    {"shift", shift, METH_VARARGS, "See packed.py."},
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
    PyModuleDef_HEAD_INIT, "_packed", "See packed.py.", 0, functions, slots, NULL, NULL, NULL,
};

PyMODINIT_FUNC
PyInit__packed(void)
{
    return PyModuleDef_Init(&definition);
}
