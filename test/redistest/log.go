package redistest

import (
	"context"
	"fmt"
	"io"
	"sync"
	"time"
)

// clientLog keeps what go-redis says of its connections. Tests that break them on purpose would fill the output with it; it is of
// use only where a test fails.
type clientLog struct {
	mu    sync.Mutex
	lines []string
}

// Printf is what go-redis calls.
func (l *clientLog) Printf(_ context.Context, format string, args ...any) {
	line := time.Now().Format("15:04:05.000 ") + fmt.Sprintf(format, args...)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, line)
}

// print writes the last fifty lines.
func (l *clientLog) print(w io.Writer) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, line := range l.lines[max(0, len(l.lines)-50):] {
		fmt.Fprintln(w, "go-redis:", line)
	}
}
