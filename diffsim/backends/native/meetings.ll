; Compares the notes of index traces (`passes/autodiff/index_trace.py`): do two sets of accesses touch the same
; element? Python's side, which says what is compared, is `runtime/numbering/meetings.py`.
;
; Notes of one task are a row of six slots: the notes, for each lane the place of its first note and the one after
; its last, the number of lanes, which accesses are asked for (a bit for each), and by how many bits the element is
; shifted in a note; below are those of the access. `parts` numbers of a note are one element.

; The element of a note; the least number of all if its access is not asked for.
define internal i64 @element(i64 %note, i64 %mask, i64 %shift, i64 %parts) alwaysinline nounwind {
  %below = shl nsw i64 -1, %shift
  %site.mask = xor i64 %below, -1
  %site = and i64 %note, %site.mask
  %bit = lshr i64 %mask, %site
  %asked = trunc i64 %bit to i1
  %number = ashr i64 %note, %shift
  %whole = icmp eq i64 %parts, 1
  br i1 %whole, label %done, label %divide
divide:
  %towards.0 = sdiv i64 %number, %parts
  %rest = srem i64 %number, %parts
  %is.rounded = icmp slt i64 %rest, 0
  %down = sext i1 %is.rounded to i64
  %quotient = add i64 %towards.0, %down
  br label %done
done:
  %e = phi i64 [ %number, %0 ], [ %quotient, %divide ]
  %found = select i1 %asked, i64 %e, i64 -9223372036854775808
  ret i64 %found
}

; Writes the least and the greatest element of some accesses to `found`.
define void @ds_note_range(ptr %row, i64 %parts, ptr %found) nounwind {
entry:
  %notes = load ptr, ptr %row
  %starts.p = getelementptr i64, ptr %row, i64 1
  %starts = load ptr, ptr %starts.p
  %ends.p = getelementptr i64, ptr %row, i64 2
  %ends = load ptr, ptr %ends.p
  %lanes.p = getelementptr i64, ptr %row, i64 3
  %lanes = load i64, ptr %lanes.p
  %mask.p = getelementptr i64, ptr %row, i64 4
  %mask = load i64, ptr %mask.p
  %shift.p = getelementptr i64, ptr %row, i64 5
  %shift = load i64, ptr %shift.p
  br label %lane
lane:
  %l = phi i64 [ 0, %entry ], [ %l.next, %lane.end ]
  %least = phi i64 [ 9223372036854775807, %entry ], [ %least.k, %lane.end ]
  %most = phi i64 [ -9223372036854775808, %entry ], [ %most.k, %lane.end ]
  %l.more = icmp slt i64 %l, %lanes
  br i1 %l.more, label %lane.begin, label %done
lane.begin:
  %start.p = getelementptr i64, ptr %starts, i64 %l
  %start = load i64, ptr %start.p
  %end.p = getelementptr i64, ptr %ends, i64 %l
  %end = load i64, ptr %end.p
  br label %note
note:
  %k = phi i64 [ %start, %lane.begin ], [ %k.next, %read ]
  %least.k = phi i64 [ %least, %lane.begin ], [ %least.next, %read ]
  %most.k = phi i64 [ %most, %lane.begin ], [ %most.next, %read ]
  %k.more = icmp slt i64 %k, %end
  br i1 %k.more, label %read, label %lane.end
read:
  %p = getelementptr i64, ptr %notes, i64 %k
  %v = load i64, ptr %p
  %e = call i64 @element(i64 %v, i64 %mask, i64 %shift, i64 %parts)
  %there = icmp ne i64 %e, -9223372036854775808
  %is.less = icmp slt i64 %e, %least.k
  %less = and i1 %there, %is.less
  %least.next = select i1 %less, i64 %e, i64 %least.k
  %more = icmp sgt i64 %e, %most.k
  %most.next = select i1 %more, i64 %e, i64 %most.k
  %k.next = add i64 %k, 1
  br label %note
lane.end:
  %l.next = add i64 %l, 1
  br label %lane
done:
  store i64 %least, ptr %found
  %most.p = getelementptr i64, ptr %found, i64 1
  store i64 %most, ptr %most.p
  ret void
}

; Writes into `table`, for each element from `least` on, `base` and the number from 1 of the lane that touches it;
; `base` and 2^32 - 1 for several lanes. What is below `base` there counts as nothing. Returns whether any
; element is touched by several lanes, and 2 if one is not among the `size` elements of the table.
define i64 @ds_note_lanes(ptr %row, i64 %parts, ptr %table, i64 %least, i64 %base, i64 %size) nounwind {
entry:
  %notes = load ptr, ptr %row
  %starts.p = getelementptr i64, ptr %row, i64 1
  %starts = load ptr, ptr %starts.p
  %ends.p = getelementptr i64, ptr %row, i64 2
  %ends = load ptr, ptr %ends.p
  %lanes.p = getelementptr i64, ptr %row, i64 3
  %lanes = load i64, ptr %lanes.p
  %mask.p = getelementptr i64, ptr %row, i64 4
  %mask = load i64, ptr %mask.p
  %shift.p = getelementptr i64, ptr %row, i64 5
  %shift = load i64, ptr %shift.p
  %several = add i64 %base, 4294967295
  br label %lane
lane:
  %l = phi i64 [ 0, %entry ], [ %l.next, %lane.end ]
  %met = phi i1 [ false, %entry ], [ %met.k, %lane.end ]
  %l.more = icmp slt i64 %l, %lanes
  br i1 %l.more, label %lane.begin, label %done
lane.begin:
  %start.p = getelementptr i64, ptr %starts, i64 %l
  %start = load i64, ptr %start.p
  %end.p = getelementptr i64, ptr %ends, i64 %l
  %end = load i64, ptr %end.p
  %l.next = add i64 %l, 1
  %mine = add i64 %base, %l.next
  br label %note
note:
  %k = phi i64 [ %start, %lane.begin ], [ %k.next, %note.end ]
  %met.k = phi i1 [ %met, %lane.begin ], [ %met.next, %note.end ]
  %k.more = icmp slt i64 %k, %end
  br i1 %k.more, label %read, label %lane.end
read:
  %p = getelementptr i64, ptr %notes, i64 %k
  %v = load i64, ptr %p
  %e = call i64 @element(i64 %v, i64 %mask, i64 %shift, i64 %parts)
  %there = icmp ne i64 %e, -9223372036854775808
  br i1 %there, label %locate, label %note.end
locate:
  %at = sub i64 %e, %least
  %inside = icmp ult i64 %at, %size
  br i1 %inside, label %mark, label %outside
mark:
  %t.p = getelementptr i64, ptr %table, i64 %at
  %t = load i64, ptr %t.p
  %fresh = icmp ult i64 %t, %base
  %same = icmp eq i64 %t, %mine
  %alone = or i1 %fresh, %same
  %now = select i1 %alone, i64 %mine, i64 %several
  store i64 %now, ptr %t.p
  %shared = xor i1 %alone, true
  %met.mark = or i1 %met.k, %shared
  br label %note.end
note.end:
  %met.next = phi i1 [ %met.k, %read ], [ %met.mark, %mark ]
  %k.next = add i64 %k, 1
  br label %note
lane.end:
  br label %lane
done:
  %result = zext i1 %met to i64
  ret i64 %result
outside:
  ret i64 2
}

; Whether any of some accesses touches an element that `ds_note_lanes` has written to the table, of `size`
; elements from `least` on; `same_lane`: in another lane.
define i64 @ds_notes_meet(ptr %row, i64 %parts, ptr %table, i64 %least, i64 %base, i64 %size, i64 %same_lane) nounwind {
entry:
  %notes = load ptr, ptr %row
  %starts.p = getelementptr i64, ptr %row, i64 1
  %starts = load ptr, ptr %starts.p
  %ends.p = getelementptr i64, ptr %row, i64 2
  %ends = load ptr, ptr %ends.p
  %lanes.p = getelementptr i64, ptr %row, i64 3
  %lanes = load i64, ptr %lanes.p
  %mask.p = getelementptr i64, ptr %row, i64 4
  %mask = load i64, ptr %mask.p
  %shift.p = getelementptr i64, ptr %row, i64 5
  %shift = load i64, ptr %shift.p
  %may.share = trunc i64 %same_lane to i1
  br label %lane
lane:
  %l = phi i64 [ 0, %entry ], [ %l.next, %lane.end ]
  %l.more = icmp slt i64 %l, %lanes
  br i1 %l.more, label %lane.begin, label %apart
lane.begin:
  %start.p = getelementptr i64, ptr %starts, i64 %l
  %start = load i64, ptr %start.p
  %end.p = getelementptr i64, ptr %ends, i64 %l
  %end = load i64, ptr %end.p
  %l.next = add i64 %l, 1
  %mine = add i64 %base, %l.next
  br label %note
note:
  %k = phi i64 [ %start, %lane.begin ], [ %k.next, %note.end ]
  %k.more = icmp slt i64 %k, %end
  br i1 %k.more, label %read, label %lane.end
read:
  %p = getelementptr i64, ptr %notes, i64 %k
  %v = load i64, ptr %p
  %e = call i64 @element(i64 %v, i64 %mask, i64 %shift, i64 %parts)
  %there = icmp ne i64 %e, -9223372036854775808
  %at = sub i64 %e, %least
  %inside = icmp ult i64 %at, %size
  %look = and i1 %there, %inside
  br i1 %look, label %compare, label %note.end
compare:
  %t.p = getelementptr i64, ptr %table, i64 %at
  %t = load i64, ptr %t.p
  %touched = icmp uge i64 %t, %base
  %same = icmp eq i64 %t, %mine
  %spared = and i1 %same, %may.share
  %free = xor i1 %spared, true
  %meets = and i1 %touched, %free
  br i1 %meets, label %met, label %note.end
note.end:
  %k.next = add i64 %k, 1
  br label %note
lane.end:
  br label %lane
apart:
  ret i64 0
met:
  ret i64 1
}
