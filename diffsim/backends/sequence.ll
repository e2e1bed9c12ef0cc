; Operations that run one after the other, without Python between them: what a replayed tape is made of.
;
; An operation is a row of eight 8-byte slots. `kind` says what it does with the rest:
;   0 launch  target(source), where target is a kernel's `launch` and source its parameter block; extra
;             is null, or the address of an i64 that is not 0 after a failed check
;   1 copy    count stretches of memory from source to target
;   2 clear   count stretches at target to 0
;   3 swap    count stretches between target and source
;   4 add     count stretches of source to those of target, as f32; 5 as f64
; A stretch is `bytes` long; the next one begins `target.step` and `source.step` bytes further on.

@CLOCK_MONOTONIC = internal constant i32 1
@SLICE = internal constant i64 20000000          ; [ns]

;             kind target source extra bytes count target.step source.step
%Op = type { i64, ptr, ptr, ptr, i64, i64, i64, i64 }

declare i32 @clock_gettime(i32, ptr) nounwind
declare void @llvm.memmove.p0.p0.i64(ptr, ptr, i64, i1)
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)

; Monotonic time [ns].
define internal i64 @now() nounwind {
  %time = alloca { i64, i64 }
  %id = load i32, ptr @CLOCK_MONOTONIC
  %rc = call i32 @clock_gettime(i32 %id, ptr %time)
  %s = load i64, ptr %time
  %ns.p = getelementptr { i64, i64 }, ptr %time, i64 0, i32 1
  %ns = load i64, ptr %ns.p
  %whole = mul i64 %s, 1000000000
  %sum = add i64 %whole, %ns
  ret i64 %sum
}

define internal void @swap(ptr noalias %a, ptr noalias %b, i64 %bytes) nounwind {
entry:
  br label %head
head:
  %i = phi i64 [ 0, %entry ], [ %next, %byte ]
  %more = icmp ult i64 %i, %bytes
  br i1 %more, label %byte, label %done
byte:
  %a.p = getelementptr inbounds i8, ptr %a, i64 %i
  %b.p = getelementptr inbounds i8, ptr %b, i64 %i
  %a.v = load i8, ptr %a.p
  %b.v = load i8, ptr %b.p
  store i8 %b.v, ptr %a.p
  store i8 %a.v, ptr %b.p
  %next = add nuw i64 %i, 1
  br label %head
done:
  ret void
}

define internal void @add_f32(ptr noalias %a, ptr noalias %b, i64 %bytes) nounwind {
entry:
  %n = udiv i64 %bytes, 4
  br label %head
head:
  %i = phi i64 [ 0, %entry ], [ %next, %number ]
  %more = icmp ult i64 %i, %n
  br i1 %more, label %number, label %done
number:
  %a.p = getelementptr inbounds float, ptr %a, i64 %i
  %b.p = getelementptr inbounds float, ptr %b, i64 %i
  %a.v = load float, ptr %a.p
  %b.v = load float, ptr %b.p
  %sum = fadd float %a.v, %b.v
  store float %sum, ptr %a.p
  %next = add nuw i64 %i, 1
  br label %head
done:
  ret void
}

define internal void @add_f64(ptr noalias %a, ptr noalias %b, i64 %bytes) nounwind {
entry:
  %n = udiv i64 %bytes, 8
  br label %head
head:
  %i = phi i64 [ 0, %entry ], [ %next, %number ]
  %more = icmp ult i64 %i, %n
  br i1 %more, label %number, label %done
number:
  %a.p = getelementptr inbounds double, ptr %a, i64 %i
  %b.p = getelementptr inbounds double, ptr %b, i64 %i
  %a.v = load double, ptr %a.p
  %b.v = load double, ptr %b.p
  %sum = fadd double %a.v, %b.v
  store double %sum, ptr %a.p
  %next = add nuw i64 %i, 1
  br label %head
done:
  ret void
}

; All stretches of an operation that moves memory.
define internal void @move(ptr %op, i64 %kind) noinline nounwind {
entry:
  %target.p = getelementptr %Op, ptr %op, i64 0, i32 1
  %source.p = getelementptr %Op, ptr %op, i64 0, i32 2
  %bytes.p = getelementptr %Op, ptr %op, i64 0, i32 4
  %count.p = getelementptr %Op, ptr %op, i64 0, i32 5
  %target.step.p = getelementptr %Op, ptr %op, i64 0, i32 6
  %source.step.p = getelementptr %Op, ptr %op, i64 0, i32 7
  %target = load ptr, ptr %target.p
  %source = load ptr, ptr %source.p
  %bytes = load i64, ptr %bytes.p
  %count = load i64, ptr %count.p
  %target.step = load i64, ptr %target.step.p
  %source.step = load i64, ptr %source.step.p
  br label %head
head:
  %k = phi i64 [ 0, %entry ], [ %k.next, %on ]
  %more = icmp ult i64 %k, %count
  br i1 %more, label %stretch, label %done
stretch:
  %target.offset = mul i64 %k, %target.step
  %source.offset = mul i64 %k, %source.step
  %to = getelementptr i8, ptr %target, i64 %target.offset
  %from = getelementptr i8, ptr %source, i64 %source.offset
  switch i64 %kind, label %on [ i64 1, label %copy
                                i64 2, label %clear
                                i64 3, label %exchange
                                i64 4, label %add.f32
                                i64 5, label %add.f64 ]
copy:
  call void @llvm.memmove.p0.p0.i64(ptr %to, ptr %from, i64 %bytes, i1 false)
  br label %on
clear:
  call void @llvm.memset.p0.i64(ptr %to, i8 0, i64 %bytes, i1 false)
  br label %on
exchange:
  call void @swap(ptr %to, ptr %from, i64 %bytes)
  br label %on
add.f32:
  call void @add_f32(ptr %to, ptr %from, i64 %bytes)
  br label %on
add.f64:
  call void @add_f64(ptr %to, ptr %from, i64 %bytes)
  br label %on
on:
  %k.next = add nuw i64 %k, 1
  br label %head
done:
  ret void
}

; Run the operations begin..end, for some 20 ms: then, and at the end, it returns 0. It returns 1 after a
; launch whose check failed, or that left an exception of Python behind (`raised` is PyErr_Occurred: a
; parallel loop was interrupted). `next` is set to the first operation that is not done.
define i64 @ds_sequence_run(ptr %ops, i64 %begin, i64 %end, ptr %next, ptr %raised) nounwind {
entry:
  store i64 %begin, ptr %next
  %start = call i64 @now()
  br label %head
head:
  %i = phi i64 [ %begin, %entry ], [ %i.next, %on ]
  %more = icmp slt i64 %i, %end
  br i1 %more, label %one, label %done
one:
  %op = getelementptr %Op, ptr %ops, i64 %i
  %kind = load i64, ptr %op
  %is.launch = icmp eq i64 %kind, 0
  br i1 %is.launch, label %launch, label %other
other:
  call void @move(ptr %op, i64 %kind)
  br label %step
launch:
  %function.p = getelementptr %Op, ptr %op, i64 0, i32 1
  %block.p = getelementptr %Op, ptr %op, i64 0, i32 2
  %errors.p = getelementptr %Op, ptr %op, i64 0, i32 3
  %function = load ptr, ptr %function.p
  %block = load ptr, ptr %block.p
  %errors = load ptr, ptr %errors.p
  call void %function(ptr %block) nounwind
  %exception = call ptr %raised() nounwind
  %fine = icmp eq ptr %exception, null
  br i1 %fine, label %checks, label %failed
checks:
  %unchecked = icmp eq ptr %errors, null
  br i1 %unchecked, label %step, label %check
check:
  %error = load i64, ptr %errors
  %passed = icmp eq i64 %error, 0
  br i1 %passed, label %step, label %failed
step:
  %i.next = add nsw i64 %i, 1
  %in.eight = and i64 %i.next, 7
  %look = icmp eq i64 %in.eight, 0
  br i1 %look, label %clock, label %on
clock:
  store i64 %i.next, ptr %next
  %time = call i64 @now()
  %took = sub i64 %time, %start
  %slice = load i64, ptr @SLICE
  %late = icmp sgt i64 %took, %slice
  br i1 %late, label %pause, label %on
on:
  br label %head
pause:
  ret i64 0
done:
  store i64 %end, ptr %next
  ret i64 0
failed:
  store i64 %i, ptr %next
  ret i64 1
}
