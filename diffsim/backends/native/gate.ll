; How launches share Python's lock (the GIL), run signal handlers, and exclude each other. One module with
; pool.ll, which has the pool's types and the clock.
;
; Python. A launch begins with the GIL held. If it still runs after %PATIENCE ns it releases the GIL, so that
; other threads of Python run, and takes it again at its end. A launch in the main thread also takes it every
; %ASK ns, to run the handlers of pending signals (`check` is PyErr_CheckSignals): no handler is installed, and
; a program's own ones run. All this is in @ds_pool_poll, which only the caller calls: between chunks, while it
; waits for workers, and at the safepoints of long loops (@ds_poll). If a handler raises, poll returns 1 and the
; launch's word %STOP is set: then all its threads return from where they are.
;
; The gate. One launch at a time runs without the lock: `saved` is its thread state. All others wait for it,
; unless a handler makes them while it is inside `check`: `saved` is null then, and such a launch ends
; before the first one goes on. `saved`, `waiters` and `reserved` are written with the lock held. The word at
; `closed` is not 0 while somebody else must wait, `reserved` while the next launch is to be one that has
; waited.

@PATIENCE = internal constant i64 5000000    ; [ns], as long as Python's threads hold the lock
@ASK = internal constant i64 50000000        ; [ns]

@closed = internal global ptr null           ; a word of Python's
@saved = internal global ptr null
@waiters = internal global i64 0
@reserved = internal global i64 0
@since = internal global i64 0               ; time of the first poll of this launch; 0: there was none
@asked = internal global i64 0               ; time of the last `check`
@native = internal global i64 0              ; whether code of the launch at the gate still runs
@ending = internal global i64 0              ; the process ends: launches of threads left over stop
@main = internal global i64 0                ; the thread that handles signals
@save = internal global ptr null             ; PyEval_SaveThread
@restore = internal global ptr null          ; PyEval_RestoreThread
@current = internal global ptr null          ; PyThreadState_Get
@signals = internal global ptr null          ; PyErr_CheckSignals

declare i32 @usleep(i32) nounwind
declare i64 @pthread_self() nounwind

; Store the addresses of the C API functions that are needed, and Python's main thread.
define void @ds_python(ptr %closed, ptr %save, ptr %restore, ptr %current, ptr %signals, i64 %main) nounwind {
  store ptr %closed, ptr @closed
  store ptr %save, ptr @save
  store ptr %restore, ptr @restore
  store ptr %current, ptr @current
  store ptr %signals, ptr @signals
  store i64 %main, ptr @main
  ret void
}

define internal i64 @is_closed() alwaysinline nounwind {
  %closed.p = load ptr, ptr @closed
  %closed = load i64, ptr %closed.p
  ret i64 %closed
}

define internal void @set_closed(i64 %closed) alwaysinline nounwind {
  %closed.p = load ptr, ptr @closed
  store i64 %closed, ptr %closed.p
  ret void
}

; Launch a kernel: call `function(block)`, `function` being the word %RUN of the block. The GIL is held.
define void @ds_launch(ptr %block) nounwind {
entry:
  %stop = call i64 @ds_enter()
  %stopped = icmp ne i64 %stop, 0
  br i1 %stopped, label %out, label %go
go:
  %run.p = getelementptr i64, ptr %block, i64 5
  %run = load ptr, ptr %run.p
  %stop.run = call i64 @ds_run(ptr %block, ptr %run)
  call void @ds_leave()
  ret void
out:
  ret void
}

; Call `function(block)` and return the block's word %STOP. A function that returned early on a stop request
; did not release its scratch: the arena of this thread goes back to where it was.
define i64 @ds_run(ptr %block, ptr %function) nounwind {
entry:
  %stop.p = getelementptr i64, ptr %block, i64 6
  store atomic i64 0, ptr %stop.p monotonic, align 8
  %pool = load ptr, ptr %block
  %none = icmp eq ptr %pool, null
  br i1 %none, label %plain, label %marked
plain:
  call void %function(ptr %block) nounwind
  ret i64 0
marked:
  %mark = call i64 @ds_arena_mark(ptr %pool, i64 0)
  call void %function(ptr %block) nounwind
  %mark.after = call i64 @ds_arena_mark(ptr %pool, i64 0)
  %left = icmp ne i64 %mark, %mark.after
  br i1 %left, label %release, label %done
release:
  call void @ds_arena_release(ptr %pool, i64 0, i64 %mark)
  br label %done
done:
  %stop = load atomic i64, ptr %stop.p monotonic, align 8
  ret i64 %stop
}

; Begin a launch, with the GIL held: 0, or 1 if a signal handler raised while it waited.
define i64 @ds_enter() nounwind {
entry:
  %closed = call i64 @is_closed()
  %open = icmp eq i64 %closed, 0
  br i1 %open, label %go, label %wait
wait:
  %stop = call i64 @wait_for_turn()
  %stopped = icmp ne i64 %stop, 0
  br i1 %stopped, label %out, label %go
go:
  store i64 0, ptr @since
  ret i64 0
out:
  ret i64 1
}

; End a launch; the GIL is held afterwards. `native` is cleared with release order before the GIL is taken: at
; the end of the process ds_end (acquire) may then free what the launch has used.
define void @ds_leave() nounwind {
entry:
  %saved = load ptr, ptr @saved
  %held = icmp eq ptr %saved, null
  br i1 %held, label %out, label %take
take:
  %ending = load atomic i64, ptr @ending monotonic, align 8
  store atomic i64 0, ptr @native release, align 8
  %over = icmp ne i64 %ending, 0
  br i1 %over, label %hang, label %back
hang:                                             ; a thread that the end of the process has left over
  %rc = call i32 @usleep(i32 900000)
  br label %hang
back:
  call void @take_lock(ptr %saved)
  %waiters = load i64, ptr @waiters
  %some = icmp ne i64 %waiters, 0
  %reserved = zext i1 %some to i64
  store i64 %reserved, ptr @reserved
  call void @set_closed(i64 %reserved)
  br label %out
out:
  ret void
}

; Release the GIL: this launch is at the gate. `closed` is set while the GIL is still held, so no thread of
; Python can begin to access fields in between.
define internal void @drop_lock() nounwind {
  %current = load ptr, ptr @current
  %state = call ptr %current() nounwind
  store atomic ptr %state, ptr @saved monotonic, align 8
  call void @set_closed(i64 1)
  store atomic i64 1, ptr @native monotonic, align 8
  %save = load ptr, ptr @save
  %same = call ptr %save() nounwind
  ret void
}

; Take the GIL again: nobody is at the gate.
define internal void @take_lock(ptr %state) nounwind {
  %restore = load ptr, ptr @restore
  call void %restore(ptr %state) nounwind
  store atomic ptr null, ptr @saved monotonic, align 8
  call void @set_closed(i64 0)
  ret void
}

; Wait, having the GIL at entry and exit, until nobody is at the gate: 0, or 1 if a signal handler raised.
define internal i64 @wait_for_turn() noinline nounwind {
entry:
  %waiters = load i64, ptr @waiters
  %waiters.more = add i64 %waiters, 1
  store i64 %waiters.more, ptr @waiters
  br label %wait
wait:
  %save = load ptr, ptr @save
  %state = call ptr %save() nounwind
  br label %nap
nap:                                              ; up to 50 ms
  %naps = phi i64 [ 0, %wait ], [ %naps.next, %nap ]
  %rc = call i32 @usleep(i32 500)
  %naps.next = add i64 %naps, 1
  %there = load atomic ptr, ptr @saved monotonic, align 8
  %gone = icmp eq ptr %there, null
  %long = icmp ugt i64 %naps, 100
  %awake = or i1 %gone, %long
  br i1 %awake, label %look, label %nap
look:
  %restore = load ptr, ptr @restore
  call void %restore(ptr %state) nounwind
  %saved = load atomic ptr, ptr @saved monotonic, align 8
  %free = icmp eq ptr %saved, null
  br i1 %free, label %go, label %ask
ask:
  %signals = load ptr, ptr @signals
  %answer = call i32 %signals() nounwind
  %raised = icmp ne i32 %answer, 0
  br i1 %raised, label %give.up, label %wait
go:
  %waiters.go = load i64, ptr @waiters
  %waiters.less = sub i64 %waiters.go, 1
  store i64 %waiters.less, ptr @waiters
  store i64 0, ptr @reserved
  call void @set_closed(i64 0)
  ret i64 0
give.up:                                          ; handlers may have launched: look again who is there
  %waiters.up = load i64, ptr @waiters
  %waiters.left = sub i64 %waiters.up, 1
  store i64 %waiters.left, ptr @waiters
  %others = icmp ne i64 %waiters.left, 0
  %reserved = load i64, ptr @reserved
  %reserved.now = select i1 %others, i64 %reserved, i64 0
  store i64 %reserved.now, ptr @reserved
  %saved.now = load atomic ptr, ptr @saved monotonic, align 8
  %busy = icmp ne ptr %saved.now, null
  %busy.word = zext i1 %busy to i64
  %closed = or i64 %busy.word, %reserved.now
  call void @set_closed(i64 %closed)
  ret i64 1
}

; Wait until no launch runs without the GIL; 0, or 1 if a signal handler raised. For Python.
define i64 @ds_wait() nounwind {
entry:
  %closed = call i64 @is_closed()
  %open = icmp eq i64 %closed, 0
  br i1 %open, label %go, label %wait
wait:
  %stop = call i64 @wait_for_turn()
  ret i64 %stop
go:
  ret i64 0
}

; The poll: whether to go on. Releases the GIL when it is due, and runs signal handlers. 0, or 1 to stop, with a
; Python exception set. For the launching thread, which does not poll again after a 1.
define i64 @ds_pool_poll(ptr %pool) nounwind {
entry:
  %ending = load atomic i64, ptr @ending monotonic, align 8
  %over = icmp ne i64 %ending, 0
  br i1 %over, label %stop, label %on
on:
  %check.p = getelementptr %Pool, ptr %pool, i64 0, i32 0, i32 2
  %check = load ptr, ptr %check.p
  %none = icmp eq ptr %check, null
  br i1 %none, label %go_on, label %look
look:
  %time = call i64 @now()
  %since = load i64, ptr @since
  %first = icmp eq i64 %since, 0
  br i1 %first, label %begin, label %later
begin:
  store i64 %time, ptr @since
  br label %go_on
later:
  %saved = load ptr, ptr @saved
  %held = icmp eq ptr %saved, null
  br i1 %held, label %holding, label %without
holding:
  %took = sub i64 %time, %since
  %patience = load i64, ptr @PATIENCE
  %early = icmp slt i64 %took, %patience
  br i1 %early, label %go_on, label %ask
without:
  %me = call i64 @pthread_self()
  %main = load i64, ptr @main
  %is.main = icmp eq i64 %me, %main
  br i1 %is.main, label %when, label %go_on
when:
  %asked = load i64, ptr @asked
  %passed = sub i64 %time, %asked
  %every = load i64, ptr @ASK
  %soon = icmp slt i64 %passed, %every
  br i1 %soon, label %go_on, label %take
take:
  store atomic i64 0, ptr @native monotonic, align 8
  call void @take_lock(ptr %saved)
  br label %ask
ask:
  %answer = call i32 %check() nounwind
  %raised = icmp ne i32 %answer, 0
  br i1 %raised, label %stop, label %again
again:                                            ; another thread may have launched meanwhile
  %there = load ptr, ptr @saved
  %gate.free = icmp eq ptr %there, null
  br i1 %gate.free, label %drop, label %queue
queue:
  %gave.up = call i64 @wait_for_turn()
  %given.up = icmp ne i64 %gave.up, 0
  br i1 %given.up, label %stop, label %drop
drop:
  %time.now = call i64 @now()
  store i64 %time.now, ptr @asked
  store i64 %since, ptr @since
  call void @drop_lock()
  br label %go_on
stop:
  ret i64 1
go_on:
  ret i64 0
}

; A safepoint of a long loop: not 0 if the launch of this block is to stop. Workers only read the word; the
; launching thread (worker 0) polls, as only it may hold the GIL.
define i64 @ds_poll(ptr %block, i64 %worker) nounwind {
entry:
  %stop.p = getelementptr i64, ptr %block, i64 6
  %stop = load atomic i64, ptr %stop.p monotonic, align 8
  %stopped = icmp ne i64 %stop, 0
  br i1 %stopped, label %out, label %on
on:
  %caller = icmp eq i64 %worker, 0
  br i1 %caller, label %poll, label %out
poll:
  %pool = load ptr, ptr %block
  %answer = call i64 @ds_pool_poll(ptr %pool)
  %no = icmp eq i64 %answer, 0
  br i1 %no, label %out, label %set
set:
  store atomic i64 1, ptr %stop.p monotonic, align 8
  br label %out
out:
  %result = phi i64 [ %stop, %entry ], [ 0, %on ], [ 0, %poll ], [ 1, %set ]
  ret i64 %result
}

; At the end of the process, with the GIL held: stop the launch of a daemon thread, waiting for up to 1 s.
; Returns 0 if nothing runs.
define i64 @ds_end() nounwind {
entry:
  %saved = load ptr, ptr @saved
  %none = icmp eq ptr %saved, null
  br i1 %none, label %out, label %stop
stop:
  store atomic i64 1, ptr @ending monotonic, align 8
  br label %wait
wait:
  %i = phi i64 [ 0, %stop ], [ %i.next, %nap ]
  %native = load atomic i64, ptr @native acquire, align 8
  %over = icmp eq i64 %native, 0
  br i1 %over, label %gone, label %more
more:
  %i.next = add i64 %i, 1
  %late = icmp ugt i64 %i, 1000
  br i1 %late, label %runs, label %nap
nap:
  %rc = call i32 @usleep(i32 1000)
  br label %wait
gone:                                             ; that thread hangs: others may launch
  store atomic ptr null, ptr @saved monotonic, align 8
  call void @set_closed(i64 0)
  store i64 0, ptr @reserved
  ret i64 0
runs:
  ret i64 1
out:
  ret i64 0
}

; In the child of a fork: only this thread exists, and it is the main thread now.
define void @ds_after_fork() nounwind {
  store atomic ptr null, ptr @saved monotonic, align 8
  call void @set_closed(i64 0)
  store i64 0, ptr @waiters
  store i64 0, ptr @reserved
  store atomic i64 0, ptr @native monotonic, align 8
  store atomic i64 0, ptr @ending monotonic, align 8
  %me = call i64 @pthread_self()
  store i64 %me, ptr @main
  ret void
}
