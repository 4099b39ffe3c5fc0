/* Moves the bounds of packed rows: the compiled form of a loop of packed.py, which is the reference,
 * says what the function means, and does the work where this module was not built; the tests hold
 * both to the same answers.
 */

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>

#include <stdint.h>
#include <string.h>

/* What the function takes and gives; packed.py wants the same number.  Raise both together. */
enum { FORM = 2 };

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

static PyMethodDef functions[] = {
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
