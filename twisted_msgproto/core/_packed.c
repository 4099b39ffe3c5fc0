/* Packs rows, and moves the bounds of packed ones: the compiled forms of loops of packed.py, which is
 * the reference, says what the functions mean, and does the work where this module was not built; the
 * tests hold both to the same answers.
 */

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>

#include <stdint.h>
#include <string.h>

/* What the functions take and give; packed.py wants the same number.  Raise both together. */
enum { FORM = 3 };

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
    for (Py_ssize_t row = 0; result && row < count; row++) {
        int32_t place;
        memcpy(&place, from + row * (Py_ssize_t)sizeof place, sizeof place);
        if (by < INT32_MIN - (long long)place || by > INT32_MAX - (long long)place) {
            PyErr_SetString(PyExc_OverflowError, "places are signed 32-bit integers");
            Py_CLEAR(result);
            break;
        }
        place = (int32_t)(place + by);
        memcpy(to + row * (Py_ssize_t)sizeof place, &place, sizeof place);
    }
    PyBuffer_Release(&given);
    return result;
}

/* The bytes of one piece, and how many; -1 for what is not plain bytes: packed.py knows the rest. */
static Py_ssize_t
piece(PyObject *pieces, Py_ssize_t row, char **data)
{
    PyObject *value = PyList_GetItem(pieces, row);
    Py_ssize_t size;
    if (!value || !PyBytes_Check(value) || PyBytes_AsStringAndSize(value, data, &size) < 0)
        return -1;
    return size;
}

/* Fills in the bounds of the pieces; false for what packed.py has to decide. */
static int
bound(PyObject *pieces, Py_ssize_t count, char *bounds, int32_t *total)
{
    int32_t place = 0;
    memcpy(bounds, &place, sizeof place);
    for (Py_ssize_t row = 0; row < count; row++) {
        char *data;
        const Py_ssize_t size = piece(pieces, row, &data);
        if (size < 0 || size > INT32_MAX - place)
            return 0;
        place += (int32_t)size;
        memcpy(bounds + (row + 1) * (Py_ssize_t)sizeof place, &place, sizeof place);
    }
    *total = place;
    return 1;
}

static PyObject *
spans(PyObject *module, PyObject *pieces)
{
    if (!PyList_Check(pieces))
        Py_RETURN_NONE;
    const Py_ssize_t count = PyList_Size(pieces);
    PyObject *bounds = PyBytes_FromStringAndSize(NULL, (count + 1) * (Py_ssize_t)sizeof(int32_t));
    if (!bounds)
        return NULL;
    int32_t total;
    if (!bound(pieces, count, PyBytes_AsString(bounds), &total)) {
        Py_DECREF(bounds);
        if (PyErr_Occurred())
            return NULL;
        Py_RETURN_NONE;
    }
    PyObject *joined = PyBytes_FromStringAndSize(NULL, total);
    if (!joined) {
        Py_DECREF(bounds);
        return NULL;
    }
    char *to = PyBytes_AsString(joined);
    for (Py_ssize_t row = 0; row < count; row++) {
        char *data;
        const Py_ssize_t size = piece(pieces, row, &data);
        memcpy(to, data, (size_t)size);
        to += size;
    }
    return Py_BuildValue("NN", bounds, joined);
}

static PyMethodDef functions[] = {
    {"spans", spans, METH_O, "See packed.py."},
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
