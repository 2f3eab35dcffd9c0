package redistest

import (
	"context"
	"fmt"
	"io"
	"sync"
	"time"
)

// keptLines is how many lines of go-redis are kept.
const keptLines = 50

// clientLog keeps the last of what go-redis says of its connections. Tests that
// break them on purpose would fill the output with it; it is of use only where
// a test fails.
type clientLog struct {
	mu    sync.Mutex
	lines []string
	more  int // were said before those
}

// Printf is what go-redis calls.
func (l *clientLog) Printf(_ context.Context, format string, args ...any) {
	line := time.Now().Format("15:04:05.000 ") + fmt.Sprintf(format, args...)
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.lines) == keptLines {
		l.lines = append(l.lines[:0], l.lines[1:]...)
		l.more++
	}
	l.lines = append(l.lines, line)
}

// print writes what was kept.
func (l *clientLog) print(w io.Writer) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.lines) == 0 {
		return
	}
	fmt.Fprintf(w, "redistest: the last words of go-redis, after %d more lines:\n", l.more)
	for _, line := range l.lines {
		fmt.Fprintln(w, " ", line)
	}
}
