package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"

	"github.com/headway-go/headway/cmd/internal/cli"
	"github.com/headway-go/headway/queue"
)

// resultJSON is a task's line under -json. The usage text lists its fields.
type resultJSON struct {
	Line  int         `json:"line,omitempty"`
	ID    string      `json:"id"`
	Queue string      `json:"queue,omitempty"`
	State queue.State `json:"state"`
	Error string      `json:"error,omitempty"`
}

// summaryJSON is the last line of a batch under -json.
type summaryJSON struct {
	Summary     bool  `json:"summary"`
	Lines       int   `json:"lines"`
	Enqueued    int   `json:"enqueued"`
	Duplicate   int   `json:"duplicate"`
	Invalid     int   `json:"invalid"`
	Failed      int   `json:"failed"`
	RandomIDs   int   `json:"random_ids"`
	Interrupted bool  `json:"interrupted"`
	ElapsedMS   int64 `json:"elapsed_ms"`
}

// appendResult appends a result as one line of JSON.
func appendResult(dst []byte, r queue.Result, why string) []byte {
	return appendJSON(dst, resultJSON{Line: r.Line, ID: r.ID, Queue: r.Queue, State: r.State, Error: why})
}

func appendJSON(dst []byte, v any) []byte {
	buf := bytes.NewBuffer(dst)
	enc := json.NewEncoder(buf)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(v) // strings, numbers and booleans only
	return buf.Bytes()
}

// reason tells in one line why a task was not enqueued; empty when it was, or
// when its id is taken.
func reason(r queue.Result, err error) string {
	if invalid, ok := errors.AsType[*queue.InvalidError](r.Err); ok {
		return invalid.Reasons()
	}
	if told, ok := errors.AsType[*cli.Error](err); ok {
		return told.What
	}
	if err == nil {
		return ""
	}
	return strings.ReplaceAll(err.Error(), "\n", " ")
}
