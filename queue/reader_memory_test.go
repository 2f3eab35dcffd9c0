package queue

import (
	"io"
	"strings"
	"testing"
)

// letters is a line that does not end.
type letters struct{}

func (letters) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = 'x'
	}
	return len(p), nil
}

// TestLongLineIsNotKept holds that "it holds one line in memory at a time", of
// which no more than MaxLine matters.
func TestLongLineIsNotKept(t *testing.T) {
	t.Parallel()
	good := `{"type":"mail","scope":"a","id":"b"}`
	r := NewReader(io.MultiReader(io.LimitReader(letters{}, 64<<20), strings.NewReader("\n"+good)))
	if e := r.Next(); e.Err == nil || !strings.Contains(e.Err.Error(), "longer than") {
		t.Errorf("%+v", e)
	}
	if cap(r.long) > 2*MaxLine {
		t.Errorf("%d bytes are kept of a line", cap(r.long))
	}
	if e := r.Next(); e.Err != nil || e.Task.ID != "b" || e.Line != 2 {
		t.Errorf("%+v", e)
	}
}
