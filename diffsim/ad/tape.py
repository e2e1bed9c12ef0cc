class Tape: pass
