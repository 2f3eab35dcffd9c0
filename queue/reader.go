package queue

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"iter"
)

// Entry is one element of a batch: a task, or the error in its place.
type Entry struct {
	// Line is the element's line in its file, or its place in its list, from 1.
	Line int
	Task Task
	// Err is nil for a task, and an *InvalidError for a bad line, after which reading continues. Any
	// other error comes from the source and ends the batch.
	Err error
}

// Number turns tasks that do not come from a file into a batch. Their lines are their places, from 1.
func Number(tasks iter.Seq[Task]) iter.Seq[Entry] {
	return func(yield func(Entry) bool) {
		line := 0
		for t := range tasks {
			line++
			if !yield(Entry{Line: line, Task: t}) {
				return
			}
		}
	}
}

// Reader reads tasks from NDJSON, one per line. It holds one line in memory at a time. Lines end with "\n" or "\r\n". Blank lines
// are skipped but counted, and a byte order mark at the start is dropped. It is not safe for concurrent use.
type Reader struct {
	src  *bufio.Reader
	line int
}

// NewReader returns a Reader of src.
func NewReader(src io.Reader) *Reader {
	return &Reader{src: bufio.NewReaderSize(src, MaxLine+len("\r\n")+1)}
}

// All returns the remaining entries: one for each task or bad line. It ends after the last line, or after an
// Entry with the error of a source that could not be read.
func (r *Reader) All() iter.Seq[Entry] {
	return func(yield func(Entry) bool) {
		for {
			text, err := r.readLine()
			switch e := (Entry{Line: r.line, Err: err}); {
			case errors.Is(err, io.EOF):
				return
			case err != nil:
				yield(e)
				return
			case len(bytes.TrimSpace(text)) > 0:
				if e.Task, e.Err = ParseLine(text); !yield(e) {
					return
				}
			}
		}
	}
}

// readLine returns the next line without its end. Of a line longer than MaxLine it returns a part that is longer, too.
func (r *Reader) readLine() ([]byte, error) {
	text, err := r.src.ReadSlice('\n')
	for errors.Is(err, bufio.ErrBufferFull) {
		_, err = r.src.ReadSlice('\n')
	}
	switch {
	case len(text) == 0 && errors.Is(err, io.EOF):
		return nil, io.EOF
	case err != nil && !errors.Is(err, io.EOF):
		return nil, fmt.Errorf("queue: read after line %d: %w", r.line, err)
	}
	if r.line++; r.line == 1 {
		text = bytes.TrimPrefix(text, []byte("\uFEFF")) // a byte order mark
	}
	return bytes.TrimSuffix(bytes.TrimSuffix(text, []byte("\n")), []byte("\r")), nil
}
