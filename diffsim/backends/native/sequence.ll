; A list of operations that run in order without Python between them: the form of a replayed tape.
;
; An operation is a row of eight 8-byte slots. `kind` says how the others are used:
;   0 launch  count launches. source is a stream of them: for each the number of a row in the table at
;             target, and the row's `size` bytes, which go into the parameter block before the launch
;   1 copy    count spans of memory from source to target
;   2 clear   count spans at target to 0
;   3 swap    count spans of target and source
;   4 add     count spans of source to those of target, as f32; 5 as f64
; A span is `bytes` long; the next one begins `target.step` and `source.step` bytes further on.
;
; A row of the table is five 8-byte slots: a kernel's `launch`; a parameter block; null, or the address of an
; i64 that is not 0 after a failed check; where in the block the bytes go, and how many they are (`size`).

;             kind target source extra bytes count target.step source.step
%Op = type { i64, ptr, ptr, ptr, i64, i64, i64, i64 }

;               function block errors place size
%Kernel = type { ptr, ptr, ptr, ptr, i64 }

declare i64 @ds_enter() nounwind
declare i64 @ds_run(ptr, ptr) nounwind
declare i64 @ds_pool_poll(ptr) nounwind
declare void @ds_leave() nounwind
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
declare void @llvm.memmove.p0.p0.i64(ptr, ptr, i64, i1)
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)

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

; All spans of an operation on memory. Copies use memmove, as spans of one field may overlap; the others do not.
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

; The launches of an operation: 0; or 1 if one failed or was stopped, and then its row in `at`. Polled after
; every eighth launch: a poll reads the clock, and a launch may take less time than that.
define internal i64 @launches(ptr %pool, ptr %op, ptr %at) noinline nounwind {
entry:
  %table.p = getelementptr %Op, ptr %op, i64 0, i32 1
  %stream.p = getelementptr %Op, ptr %op, i64 0, i32 2
  %count.p = getelementptr %Op, ptr %op, i64 0, i32 5
  %table = load ptr, ptr %table.p
  %stream = load ptr, ptr %stream.p
  %count = load i64, ptr %count.p
  br label %head
head:
  %k = phi i64 [ 0, %entry ], [ %k.next, %step ], [ %k.next, %poll ]
  %place = phi ptr [ %stream, %entry ], [ %place.next, %step ], [ %place.next, %poll ]
  %more = icmp ult i64 %k, %count
  br i1 %more, label %launch, label %done
launch:
  %number = load i64, ptr %place
  %row = getelementptr %Kernel, ptr %table, i64 %number
  %block.p = getelementptr %Kernel, ptr %row, i64 0, i32 1
  %errors.p = getelementptr %Kernel, ptr %row, i64 0, i32 2
  %to.p = getelementptr %Kernel, ptr %row, i64 0, i32 3
  %size.p = getelementptr %Kernel, ptr %row, i64 0, i32 4
  %function = load ptr, ptr %row
  %block = load ptr, ptr %block.p
  %errors = load ptr, ptr %errors.p
  %to = load ptr, ptr %to.p
  %size = load i64, ptr %size.p
  %args = getelementptr i8, ptr %place, i64 8
  call void @llvm.memcpy.p0.p0.i64(ptr %to, ptr %args, i64 %size, i1 false)
  %stop = call i64 @ds_run(ptr %block, ptr %function)
  %fine = icmp eq i64 %stop, 0
  br i1 %fine, label %checks, label %failed
checks:
  %unchecked = icmp eq ptr %errors, null
  br i1 %unchecked, label %step, label %check
check:
  %error = load i64, ptr %errors
  %passed = icmp eq i64 %error, 0
  br i1 %passed, label %step, label %failed
step:
  %place.next = getelementptr i8, ptr %args, i64 %size
  %k.next = add nuw i64 %k, 1
  %in.eight = and i64 %k.next, 7
  %look = icmp eq i64 %in.eight, 0
  br i1 %look, label %poll, label %head
poll:
  %over = call i64 @ds_pool_poll(ptr %pool)
  %on = icmp eq i64 %over, 0
  br i1 %on, label %head, label %failed
done:
  ret i64 0
failed:
  store i64 %number, ptr %at
  ret i64 1
}

; Run the operations begin..end, as one launch (`gate.ll`): 0; or 1 after a launch whose check failed, and
; where it was stopped, with an exception of Python set. `reached` is two i64: the first operation that is not
; done, and the row of the launch that failed in it.
define i64 @ds_sequence_run(ptr %pool, ptr %ops, i64 %begin, i64 %end, ptr %reached) nounwind {
entry:
  store i64 %begin, ptr %reached
  %failed.p = getelementptr i64, ptr %reached, i64 1
  %refused = call i64 @ds_enter()
  %go = icmp eq i64 %refused, 0
  br i1 %go, label %head, label %out
head:
  %i = phi i64 [ %begin, %entry ], [ %i.next, %step ], [ %i.next, %poll ]
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
  %stop = call i64 @launches(ptr %pool, ptr %op, ptr %failed.p)
  %fine = icmp eq i64 %stop, 0
  br i1 %fine, label %step, label %failed
step:
  %i.next = add nsw i64 %i, 1
  %in.eight = and i64 %i.next, 7
  %look = icmp eq i64 %in.eight, 0
  br i1 %look, label %poll, label %head
poll:
  %over = call i64 @ds_pool_poll(ptr %pool)
  %on = icmp eq i64 %over, 0
  br i1 %on, label %head, label %stopped
done:
  store i64 %end, ptr %reached
  call void @ds_leave()
  ret i64 0
stopped:
  store i64 %i.next, ptr %reached
  call void @ds_leave()
  ret i64 1
failed:
  store i64 %i, ptr %reached
  call void @ds_leave()
  ret i64 1
out:
  ret i64 1
}
