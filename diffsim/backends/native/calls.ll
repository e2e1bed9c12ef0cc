; What Python calls to launch a kernel: functions of CPython's C API, made by `calls.py`.
;
;   ds_call(self, unused)          METH_NOARGS: launch; `self` is the address of a parameter block
;   ds_fits(self, args, n)         METH_FASTCALL: whether a launch can take these arguments as they are
;   ds_pack(self, args, n)         METH_FASTCALL: pack them
;   ds_call_with(self, args, n)    METH_FASTCALL: pack them, and launch
;
; `self` of the last three is the address of a signature, a row of 8-byte slots (`calls.py` writes it):
;   block, number of arguments, number of captured memories, their first and last bytes (addresses of pairs)
; and for each argument %Argument. Whatever is not plain does not fit, and Python looks at it: objects of
; other classes than float, int, bool, ndarray, integers out of range, arrays that are not laid out as the
; kernel needs them, memories that overlap. Nothing here runs code of Python's, so that all is one step for
; other threads. A launch packs its arguments when no other one runs, so that it overwrites those of none.

%Argument = type {
  i64,   ; 0 kind: 0 f32, 1 f64, 2 integer, 3 bool, 4 array
  ptr,   ; 1 slot of the block for the number, or for the array's address and then its dimensions; null: not used
  i64,   ; 2 least integer; of an array its rank
  i64,   ; 3 most; of an array the address of its lengths, if it must have these; 0: any
         ; of an array only:
  ptr,   ; 4 dtype of NumPy's arrays; null: it takes none of them
  i64,   ; 5 NumPy's flags that it needs
  i64,   ; 6 kind of fields (their first word)
  ptr,   ; 7 how many trailing axes of NumPy's arrays are components, and their lengths
  i64,   ; 8 bytes of an element
  i64,   ; 9 number of the first argument of the same shape
  ptr,   ; 10 dimensions, here and below those of this call
  i64,   ; 11 first byte
  i64,   ; 12 end
  ptr,   ; 13 slot of the gradient; null: not used
  i64,   ; 14 bytes of an element of the gradient; 0: none
  i64,   ; 15 first byte of the gradient
  i64    ; 16 end
}

; A field as an argument is a bytes object: kind, address, address of the gradient or 0, dimensions.

@api = internal global [8 x ptr] zeroinitializer
; 0 PyLong_AsVoidPtr, 1 PyFloat_AsDouble, 2 PyLong_AsLongLongAndOverflow, 3 PyBytes_AsString, 4 PyErr_Occurred,
; 5 PyErr_SetString, 6 Py_IncRef, 7 PyExc_RuntimeError
@none = internal global ptr null
@true = internal global ptr null
@false = internal global ptr null
@float = internal global ptr null
@int = internal global ptr null
@bytes = internal global ptr null
@ndarray = internal global ptr null

@changed = internal constant [52 x i8] c"an argument was changed while the kernel was called\00"

declare i64 @ds_enter() nounwind
declare i64 @ds_run(ptr, ptr) nounwind
declare void @ds_leave() nounwind
declare void @ds_launch(ptr) nounwind
declare float @llvm.fabs.f32(float)
declare double @llvm.fabs.f64(double)

; Store the functions of the C API (as in @api), and the objects None, True, False, float, int, bytes, ndarray.
define void @ds_calls(ptr %functions, ptr %objects) nounwind {
entry:
  call void @llvm.memcpy.p0.p0.i64(ptr @api, ptr %functions, i64 64, i1 false)
  %none = load ptr, ptr %objects
  store ptr %none, ptr @none
  %true.p = getelementptr ptr, ptr %objects, i64 1
  %true = load ptr, ptr %true.p
  store ptr %true, ptr @true
  %false.p = getelementptr ptr, ptr %objects, i64 2
  %false = load ptr, ptr %false.p
  store ptr %false, ptr @false
  %float.p = getelementptr ptr, ptr %objects, i64 3
  %float = load ptr, ptr %float.p
  store ptr %float, ptr @float
  %int.p = getelementptr ptr, ptr %objects, i64 4
  %int = load ptr, ptr %int.p
  store ptr %int, ptr @int
  %bytes.p = getelementptr ptr, ptr %objects, i64 5
  %bytes = load ptr, ptr %bytes.p
  store ptr %bytes, ptr @bytes
  %ndarray.p = getelementptr ptr, ptr %objects, i64 6
  %ndarray = load ptr, ptr %ndarray.p
  store ptr %ndarray, ptr @ndarray
  ret void
}

declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)

define internal ptr @function(i64 %k) alwaysinline nounwind {
  %p = getelementptr ptr, ptr @api, i64 %k
  %f = load ptr, ptr %p
  ret ptr %f
}

define internal ptr @given(ptr %object) alwaysinline nounwind {
  %f = call ptr @function(i64 6)
  call void %f(ptr %object) nounwind
  ret ptr %object
}

; What a launch returns: None, or null if a handler of a signal has raised.
define internal ptr @over() nounwind {
  %f = call ptr @function(i64 4)
  %error = call ptr %f() nounwind
  %fine = icmp eq ptr %error, null
  br i1 %fine, label %return, label %raise
return:
  %none = load ptr, ptr @none
  %result = call ptr @given(ptr %none)
  ret ptr %result
raise:
  ret ptr null
}

define ptr @ds_call(ptr %self, ptr %unused) nounwind {
  %f = call ptr @function(i64 0)
  %block = call ptr %f(ptr %self) nounwind
  call void @ds_launch(ptr %block)
  %result = call ptr @over()
  ret ptr %result
}

define ptr @ds_fits(ptr %self, ptr %args, i64 %n) nounwind {
  %f = call ptr @function(i64 0)
  %signature = call ptr %f(ptr %self) nounwind
  %fits = call i64 @take(ptr %signature, ptr %args, i64 %n, i1 false)
  %yes = icmp ne i64 %fits, 0
  %true = load ptr, ptr @true
  %false = load ptr, ptr @false
  %answer = select i1 %yes, ptr %true, ptr %false
  %result = call ptr @given(ptr %answer)
  ret ptr %result
}

define ptr @ds_pack(ptr %self, ptr %args, i64 %n) nounwind {
entry:
  %f = call ptr @function(i64 0)
  %signature = call ptr %f(ptr %self) nounwind
  %fits = call i64 @take(ptr %signature, ptr %args, i64 %n, i1 true)
  %yes = icmp ne i64 %fits, 0
  br i1 %yes, label %out, label %refuse
refuse:
  call void @refuse()
  br label %out
out:
  %result = call ptr @over()
  ret ptr %result
}

define internal void @refuse() nounwind {
  %set = call ptr @function(i64 5)
  %error = call ptr @function(i64 7)
  call void %set(ptr %error, ptr @changed) nounwind
  ret void
}

define ptr @ds_call_with(ptr %self, ptr %args, i64 %n) nounwind {
entry:
  %f = call ptr @function(i64 0)
  %signature = call ptr %f(ptr %self) nounwind
  %stop = call i64 @ds_enter()
  %stopped = icmp ne i64 %stop, 0
  br i1 %stopped, label %out, label %pack
pack:
  %fits = call i64 @take(ptr %signature, ptr %args, i64 %n, i1 true)
  %yes = icmp ne i64 %fits, 0
  br i1 %yes, label %go, label %refuse
go:
  %block = load ptr, ptr %signature
  %run.p = getelementptr i64, ptr %block, i64 5
  %run = load ptr, ptr %run.p
  %stop.run = call i64 @ds_run(ptr %block, ptr %run)
  call void @ds_leave()
  br label %out
refuse:
  call void @ds_leave()
  call void @refuse()
  br label %out
out:
  %result = call ptr @over()
  ret ptr %result
}

; Whether all arguments fit; with %pack, store them in the block.
define internal i64 @take(ptr %signature, ptr %args, i64 %n, i1 %pack) nounwind {
entry:
  %n.p = getelementptr i64, ptr %signature, i64 1
  %n.wanted = load i64, ptr %n.p
  %all = icmp eq i64 %n, %n.wanted
  br i1 %all, label %head, label %no
head:
  %k = phi i64 [ 0, %entry ], [ %k.next, %next ]
  %more = icmp slt i64 %k, %n
  br i1 %more, label %one, label %yes
one:
  %first = getelementptr i64, ptr %signature, i64 4
  %argument = getelementptr %Argument, ptr %first, i64 %k
  %object.p = getelementptr ptr, ptr %args, i64 %k
  %object = load ptr, ptr %object.p
  %kind = load i64, ptr %argument
  %is.array = icmp eq i64 %kind, 4
  br i1 %is.array, label %array, label %number
array:
  %fits.array = call i64 @array(ptr %signature, i64 %k, ptr %object, i1 %pack)
  br label %next.if
number:
  %fits.number = call i64 @number(ptr %argument, ptr %object, i1 %pack)
  br label %next.if
next.if:
  %fits = phi i64 [ %fits.array, %array ], [ %fits.number, %number ]
  %fine = icmp ne i64 %fits, 0
  br i1 %fine, label %next, label %no
next:
  %k.next = add i64 %k, 1
  br label %head
yes:
  ret i64 1
no:
  ret i64 0
}

define internal ptr @class_of(ptr %object) alwaysinline nounwind {
  %class.p = getelementptr i8, ptr %object, i64 8
  %class = load ptr, ptr %class.p
  ret ptr %class
}

define internal i64 @number(ptr %argument, ptr %object, i1 %pack) nounwind {
entry:
  %overflow.p = alloca i32
  %kind = load i64, ptr %argument
  %class = call ptr @class_of(ptr %object)
  %float = load ptr, ptr @float
  %int = load ptr, ptr @int
  %is.float = icmp eq ptr %class, %float
  %is.int = icmp eq ptr %class, %int
  %wants.float = icmp ult i64 %kind, 2
  %wants.bool = icmp eq i64 %kind, 3
  br i1 %wants.bool, label %bool, label %numeric
bool:
  %true = load ptr, ptr @true
  %false = load ptr, ptr @false
  %is.true = icmp eq ptr %object, %true
  %is.false = icmp eq ptr %object, %false
  %is.bool = or i1 %is.true, %is.false
  %bit = zext i1 %is.true to i64
  br i1 %is.bool, label %store, label %no
numeric:
  br i1 %is.int, label %integer, label %maybe.float
integer:
  %read = call ptr @function(i64 2)
  %integer.value = call i64 %read(ptr %object, ptr %overflow.p) nounwind
  %overflow = load i32, ptr %overflow.p
  %small = icmp eq i32 %overflow, 0
  br i1 %small, label %convert, label %no
convert:
  %as.float = sitofp i64 %integer.value to double
  br i1 %wants.float, label %real, label %range
range:
  %least.p = getelementptr %Argument, ptr %argument, i64 0, i32 2
  %most.p = getelementptr %Argument, ptr %argument, i64 0, i32 3
  %least = load i64, ptr %least.p
  %most = load i64, ptr %most.p
  %above = icmp sge i64 %integer.value, %least
  %below = icmp sle i64 %integer.value, %most
  %within = and i1 %above, %below
  br i1 %within, label %store, label %no
maybe.float:
  %both = and i1 %is.float, %wants.float
  br i1 %both, label %floating, label %no
floating:
  %read.float = call ptr @function(i64 1)
  %floating.value = call double %read.float(ptr %object) nounwind
  br label %real
real:
  %value = phi double [ %as.float, %convert ], [ %floating.value, %floating ]
  %wants.f64 = icmp eq i64 %kind, 1
  br i1 %wants.f64, label %f64, label %f32
f64:
  %bits.f64 = bitcast double %value to i64
  br label %store
f32:                                              ; one that rounds to infinity is for Python to judge
  %rounded = fptrunc double %value to float
  %rounded.abs = call float @llvm.fabs.f32(float %rounded)
  %value.abs = call double @llvm.fabs.f64(double %value)
  %infinite = fcmp oeq float %rounded.abs, 0x7FF0000000000000
  %finite = fcmp one double %value.abs, 0x7FF0000000000000
  %too.large = and i1 %infinite, %finite
  %bits.f32 = bitcast float %rounded to i32
  %bits.wide = zext i32 %bits.f32 to i64
  br i1 %too.large, label %no, label %store
store:
  %bits = phi i64 [ %bit, %bool ], [ %integer.value, %range ], [ %bits.f64, %f64 ], [ %bits.wide, %f32 ]
  %slot.p = getelementptr %Argument, ptr %argument, i64 0, i32 1
  %slot = load ptr, ptr %slot.p
  %used = icmp ne ptr %slot, null
  %stored = and i1 %pack, %used
  br i1 %stored, label %write, label %yes
write:
  store i64 %bits, ptr %slot
  br label %yes
yes:
  ret i64 1
no:
  ret i64 0
}

; Whether an array fits; its dimensions and place are noted in the signature for those that follow.
define internal i64 @array(ptr %signature, i64 %k, ptr %object, i1 %pack) nounwind {
entry:
  %first = getelementptr i64, ptr %signature, i64 4
  %argument = getelementptr %Argument, ptr %first, i64 %k
  %rank.p = getelementptr %Argument, ptr %argument, i64 0, i32 2
  %rank = load i64, ptr %rank.p
  %class = call ptr @class_of(ptr %object)
  %ndarray = load ptr, ptr @ndarray
  %bytes = load ptr, ptr @bytes
  %is.ndarray = icmp eq ptr %class, %ndarray
  br i1 %is.ndarray, label %numpy, label %maybe.field
maybe.field:
  %is.bytes = icmp eq ptr %class, %bytes
  br i1 %is.bytes, label %field, label %no
field:
  %read = call ptr @function(i64 3)
  %words = call ptr %read(ptr %object) nounwind
  %of.p = getelementptr %Argument, ptr %argument, i64 0, i32 6
  %of = load i64, ptr %of.p
  %kind = load i64, ptr %words, align 1
  %is.kind = icmp eq i64 %kind, %of
  br i1 %is.kind, label %field.read, label %no
field.read:
  %field.place.p = getelementptr i64, ptr %words, i64 1
  %field.place = load i64, ptr %field.place.p, align 1
  %field.grad.p = getelementptr i64, ptr %words, i64 2
  %field.grad = load i64, ptr %field.grad.p, align 1
  %field.dims = getelementptr i64, ptr %words, i64 3
  br label %sizes
numpy:                                            ; the head of NumPy's array objects: `calls.py` checks that it is this
  %type.p = getelementptr %Argument, ptr %argument, i64 0, i32 4
  %type.wanted = load ptr, ptr %type.p
  %type.is.p = getelementptr i8, ptr %object, i64 56
  %type = load ptr, ptr %type.is.p
  %same.type = icmp eq ptr %type, %type.wanted
  %flags.p = getelementptr i8, ptr %object, i64 64
  %flags = load i32, ptr %flags.p
  %wanted.p = getelementptr %Argument, ptr %argument, i64 0, i32 5
  %wanted = load i64, ptr %wanted.p
  %wanted.32 = trunc i64 %wanted to i32
  %flags.there = and i32 %flags, %wanted.32
  %same.flags = icmp eq i32 %flags.there, %wanted.32
  %axes.p = getelementptr i8, ptr %object, i64 24
  %axes.32 = load i32, ptr %axes.p
  %axes = sext i32 %axes.32 to i64
  %components.p = getelementptr %Argument, ptr %argument, i64 0, i32 7
  %components = load ptr, ptr %components.p
  %trailing = load i64, ptr %components
  %axes.wanted = add i64 %rank, %trailing
  %same.axes = icmp eq i64 %axes, %axes.wanted
  %fine.1 = and i1 %same.type, %same.flags
  %fine.2 = and i1 %fine.1, %same.axes
  br i1 %fine.2, label %numpy.read, label %no
numpy.read:
  %numpy.place.p = getelementptr i8, ptr %object, i64 16
  %numpy.place = load i64, ptr %numpy.place.p
  %numpy.dims.p = getelementptr i8, ptr %object, i64 32
  %numpy.dims = load ptr, ptr %numpy.dims.p
  br label %component
component:
  %c = phi i64 [ 0, %numpy.read ], [ %c.next, %component.one ]
  %c.more = icmp slt i64 %c, %trailing
  br i1 %c.more, label %component.one, label %sizes
component.one:
  %c.next = add i64 %c, 1
  %c.wanted.p = getelementptr i64, ptr %components, i64 %c.next
  %c.wanted = load i64, ptr %c.wanted.p
  %c.axis = add i64 %rank, %c
  %c.is.p = getelementptr i64, ptr %numpy.dims, i64 %c.axis
  %c.is = load i64, ptr %c.is.p
  %c.same = icmp eq i64 %c.is, %c.wanted
  br i1 %c.same, label %component, label %no
sizes:
  %place = phi i64 [ %field.place, %field.read ], [ %numpy.place, %component ]
  %grad = phi i64 [ %field.grad, %field.read ], [ 0, %component ]
  %dims = phi ptr [ %field.dims, %field.read ], [ %numpy.dims, %component ]
  br label %size
size:                                             ; lengths of axes of 1 to 2^31 - 1
  %d = phi i64 [ 0, %sizes ], [ %d.next, %size.fits ]
  %count = phi i64 [ 1, %sizes ], [ %count.next, %size.fits ]
  %d.more = icmp slt i64 %d, %rank
  br i1 %d.more, label %size.one, label %shape
size.one:
  %d.p = getelementptr i64, ptr %dims, i64 %d
  %length = load i64, ptr %d.p, align 1
  %length.less = sub i64 %length, 1
  %length.fits = icmp ult i64 %length.less, 2147483647
  br i1 %length.fits, label %size.fits, label %no
size.fits:
  %count.next = mul i64 %count, %length
  %d.next = add i64 %d, 1
  br label %size
shape:                                            ; the first array of the same shape must be the one it was compiled for
  %dims.note = getelementptr %Argument, ptr %argument, i64 0, i32 10
  store ptr %dims, ptr %dims.note
  %like.p = getelementptr %Argument, ptr %argument, i64 0, i32 9
  %like = load i64, ptr %like.p
  %scalar = icmp eq i64 %rank, 0
  br i1 %scalar, label %place.note, label %exact
exact:
  %exact.p = getelementptr %Argument, ptr %argument, i64 0, i32 3
  %exact.address = load i64, ptr %exact.p
  %any = icmp eq i64 %exact.address, 0
  %exact.lengths = inttoptr i64 %exact.address to ptr
  br i1 %any, label %alike, label %exact.one
exact.one:
  %e = phi i64 [ 0, %exact ], [ %e.next, %exact.one ]
  %e.is.p = getelementptr i64, ptr %dims, i64 %e
  %e.is = load i64, ptr %e.is.p, align 1
  %e.wanted.p = getelementptr i64, ptr %exact.lengths, i64 %e
  %e.wanted = load i64, ptr %e.wanted.p
  %e.same = icmp eq i64 %e.is, %e.wanted
  %e.next = add i64 %e, 1
  %e.more = icmp slt i64 %e.next, %rank
  %e.on = and i1 %e.same, %e.more
  br i1 %e.on, label %exact.one, label %exact.end
exact.end:
  br i1 %e.same, label %place.note, label %no
alike:
  %j = phi i64 [ 0, %exact ], [ %j.next, %alike.next ]
  %at.end = icmp eq i64 %j, %k
  br i1 %at.end, label %alike.found, label %alike.one
alike.one:
  %other = getelementptr %Argument, ptr %first, i64 %j
  %other.kind = load i64, ptr %other
  %other.array = icmp eq i64 %other.kind, 4
  %other.rank.p = getelementptr %Argument, ptr %other, i64 0, i32 2
  %other.rank = load i64, ptr %other.rank.p
  %other.same = icmp eq i64 %other.rank, %rank
  %other.may = and i1 %other.array, %other.same
  br i1 %other.may, label %axis.begin, label %alike.next
axis.begin:
  %other.dims.p = getelementptr %Argument, ptr %other, i64 0, i32 10
  %other.dims = load ptr, ptr %other.dims.p
  br label %axis
axis:
  %x = phi i64 [ 0, %axis.begin ], [ %x.next, %axis ]
  %mine.p = getelementptr i64, ptr %dims, i64 %x
  %mine = load i64, ptr %mine.p, align 1
  %theirs.p = getelementptr i64, ptr %other.dims, i64 %x
  %theirs = load i64, ptr %theirs.p, align 1
  %axis.same = icmp eq i64 %mine, %theirs
  %x.next = add i64 %x, 1
  %x.more = icmp slt i64 %x.next, %rank
  %axis.on = and i1 %axis.same, %x.more
  br i1 %axis.on, label %axis, label %axis.end
axis.end:
  br i1 %axis.same, label %alike.found, label %alike.next
alike.next:
  %j.next = add i64 %j, 1
  br label %alike
alike.found:
  %j.found = phi i64 [ %j, %alike ], [ %j, %axis.end ]
  %like.same = icmp eq i64 %j.found, %like
  br i1 %like.same, label %place.note, label %no
place.note:
  %element.p = getelementptr %Argument, ptr %argument, i64 0, i32 8
  %element = load i64, ptr %element.p
  %nbytes = mul i64 %count, %element
  %grad.element.p = getelementptr %Argument, ptr %argument, i64 0, i32 14
  %grad.element = load i64, ptr %grad.element.p
  %grad.nbytes = mul i64 %count, %grad.element
  %end = add i64 %place, %nbytes
  %grad.end = add i64 %grad, %grad.nbytes
  %alone = call i64 @is_alone(ptr %signature, i64 %k, i64 %place, i64 %end)
  %is.alone = icmp ne i64 %alone, 0
  br i1 %is.alone, label %grad.if, label %no
grad.if:
  %no.grad = icmp eq i64 %grad.element, 0
  br i1 %no.grad, label %note, label %grad.look
grad.look:
  %grad.alone = call i64 @is_alone(ptr %signature, i64 %k, i64 %grad, i64 %grad.end)
  %grad.is.alone = icmp ne i64 %grad.alone, 0
  br i1 %grad.is.alone, label %note, label %no
note:
  %place.p = getelementptr %Argument, ptr %argument, i64 0, i32 11
  store i64 %place, ptr %place.p
  %grad.place.p = getelementptr %Argument, ptr %argument, i64 0, i32 15
  store i64 %grad, ptr %grad.place.p
  %end.p = getelementptr %Argument, ptr %argument, i64 0, i32 12
  store i64 %end, ptr %end.p
  %grad.end.p = getelementptr %Argument, ptr %argument, i64 0, i32 16
  store i64 %grad.end, ptr %grad.end.p
  br i1 %pack, label %write, label %yes
write:
  %slot.p = getelementptr %Argument, ptr %argument, i64 0, i32 1
  %slot = load ptr, ptr %slot.p
  call void @bind(ptr %slot, i64 %place, ptr %dims, i64 %rank)
  %grad.slot.p = getelementptr %Argument, ptr %argument, i64 0, i32 13
  %grad.slot = load ptr, ptr %grad.slot.p
  call void @bind(ptr %grad.slot, i64 %grad, ptr %dims, i64 %rank)
  br label %yes
yes:
  ret i64 1
no:
  ret i64 0
}

; Store the address of an array and its dimensions in the block.
define internal void @bind(ptr %slot, i64 %place, ptr %dims, i64 %rank) nounwind {
entry:
  %unused = icmp eq ptr %slot, null
  br i1 %unused, label %done, label %store
store:
  store i64 %place, ptr %slot
  br label %head
head:
  %d = phi i64 [ 0, %store ], [ %d.next, %one ]
  %more = icmp slt i64 %d, %rank
  br i1 %more, label %one, label %done
one:
  %from = getelementptr i64, ptr %dims, i64 %d
  %length = load i64, ptr %from, align 1
  %d.next = add i64 %d, 1
  %to = getelementptr i64, ptr %slot, i64 %d.next
  store i64 %length, ptr %to
  br label %head
done:
  ret void
}

; Whether these bytes are apart from the captured memories and from the first %k arguments.
define internal i64 @is_alone(ptr %signature, i64 %k, i64 %begin, i64 %end) nounwind {
entry:
  %n.p = getelementptr i64, ptr %signature, i64 2
  %n = load i64, ptr %n.p
  %pairs.p = getelementptr i64, ptr %signature, i64 3
  %pairs = load ptr, ptr %pairs.p
  br label %head
head:
  %i = phi i64 [ 0, %entry ], [ %i.next, %captured ]
  %more = icmp slt i64 %i, %n
  br i1 %more, label %captured, label %arguments
captured:
  %i.next = add i64 %i, 1
  %two = mul i64 %i, 2
  %first.p = getelementptr i64, ptr %pairs, i64 %two
  %first = load i64, ptr %first.p
  %last.p = getelementptr i64, ptr %first.p, i64 1
  %last = load i64, ptr %last.p
  %meet = call i1 @meet(i64 %begin, i64 %end, i64 %first, i64 %last)
  br i1 %meet, label %no, label %head
arguments:
  %all = getelementptr i64, ptr %signature, i64 4
  br label %other
other:
  %j = phi i64 [ 0, %arguments ], [ %j.next, %other.next ]
  %j.more = icmp slt i64 %j, %k
  br i1 %j.more, label %other.one, label %yes
other.one:
  %argument = getelementptr %Argument, ptr %all, i64 %j
  %kind = load i64, ptr %argument
  %is.array = icmp eq i64 %kind, 4
  br i1 %is.array, label %other.array, label %other.next
other.array:
  %place.p = getelementptr %Argument, ptr %argument, i64 0, i32 11
  %place = load i64, ptr %place.p
  %place.end.p = getelementptr %Argument, ptr %argument, i64 0, i32 12
  %place.end = load i64, ptr %place.end.p
  %meet.array = call i1 @meet(i64 %begin, i64 %end, i64 %place, i64 %place.end)
  %grad.p = getelementptr %Argument, ptr %argument, i64 0, i32 15
  %grad = load i64, ptr %grad.p
  %grad.end.p = getelementptr %Argument, ptr %argument, i64 0, i32 16
  %grad.end = load i64, ptr %grad.end.p
  %meet.grad = call i1 @meet(i64 %begin, i64 %end, i64 %grad, i64 %grad.end)
  %meet.any = or i1 %meet.array, %meet.grad
  br i1 %meet.any, label %no, label %other.next
other.next:
  %j.next = add i64 %j, 1
  br label %other
yes:
  ret i64 1
no:
  ret i64 0
}

define internal i1 @meet(i64 %begin, i64 %end, i64 %first, i64 %last) alwaysinline nounwind {
  %before = icmp ult i64 %first, %end
  %behind = icmp ult i64 %begin, %last
  %both = and i1 %before, %behind
  ret i1 %both
}
