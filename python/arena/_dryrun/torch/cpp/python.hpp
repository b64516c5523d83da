// The few functions of Python's C interface that are needed, declared here: Python's headers may not be installed.
#pragma once

extern "C" {
struct ArenaPyObject;  // opaque, as every object of Python is here
struct ArenaPyMethod {
  const char* name;
  ArenaPyObject* (*function)(ArenaPyObject* self, ArenaPyObject* arguments, ArenaPyObject* named);
  int flags;
  const char* doc;
};

int Py_IsInitialized();
int PyGILState_Check();
int PyGILState_Ensure();
void PyGILState_Release(int state);
void* PyGILState_GetThisThreadState();
ArenaPyObject* PyThreadState_GetFrame(void* state);
ArenaPyObject* PyFrame_GetBack(ArenaPyObject* frame);
ArenaPyObject* PyFrame_GetCode(ArenaPyObject* frame);
int PyFrame_GetLineNumber(ArenaPyObject* frame);
__attribute__((weak)) int PyFrame_GetLasti(ArenaPyObject* frame);  // since Python 3.11
__attribute__((weak)) int Py_IsFinalizing();                       // since Python 3.13
__attribute__((weak)) int _Py_IsFinalizing();                      // before
ArenaPyObject* PyObject_GetAttrString(ArenaPyObject* object, const char* name);
ArenaPyObject* PyObject_Call(ArenaPyObject* callable, ArenaPyObject* arguments, ArenaPyObject* named);
const char* PyUnicode_AsUTF8(ArenaPyObject* text);
ArenaPyObject* PyTuple_GetItem(ArenaPyObject* tuple, long index);
long PyTuple_Size(ArenaPyObject* tuple);
ArenaPyObject* PyCFunction_NewEx(ArenaPyMethod* method, ArenaPyObject* self, ArenaPyObject* module);
ArenaPyObject* PyInstanceMethod_New(ArenaPyObject* function);
void Py_IncRef(ArenaPyObject* object);
void Py_DecRef(ArenaPyObject* object);
void PyErr_Clear();
}

namespace arena::python {

// A reference that is given back.
class Owned {
 public:
  explicit Owned(ArenaPyObject* object = nullptr) : object_(object) {}
  Owned(Owned&& other) noexcept : object_(other.object_) { other.object_ = nullptr; }
  Owned& operator=(Owned&& other) noexcept {
    ArenaPyObject* const before = object_;
    object_ = other.object_;
    other.object_ = nullptr;
    if (before != nullptr) Py_DecRef(before);
    return *this;
  }
  ~Owned() {
    if (object_ != nullptr) Py_DecRef(object_);
  }
  ArenaPyObject* get() const { return object_; }
  explicit operator bool() const { return object_ != nullptr; }

 private:
  ArenaPyObject* object_;
};

inline bool is_ending() {
  if (Py_IsInitialized() == 0) return true;
  if (Py_IsFinalizing != nullptr) return Py_IsFinalizing() != 0;
  return _Py_IsFinalizing != nullptr && _Py_IsFinalizing() != 0;
}

// Python's lock, for a thread that Python knows and that may have released it.
class Locked {
 public:
  Locked() : state_(PyGILState_Ensure()) {}
  ~Locked() { PyGILState_Release(state_); }
  Locked(const Locked&) = delete;
  Locked& operator=(const Locked&) = delete;

 private:
  int state_;
};

}  // namespace arena::python
