// Package demand records what tasks want of their limits, and what they got: scope, costs, when a task wanted to start, when it started
// and ended, and the API's answer. It records no payloads. A record is what package replay runs against other limits.
//
//	file, err := demand.OpenFile("web-1.ndjson.gz", 1<<30)
//	…
//	record, err := demand.NewRecorder(demand.Config{Out: file})
//	…
//	limits, err := worker.New(rdb, worker.Config{Record: record})
//
// Source: docs/replay.md
package demand

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"strings"

	"github.com/headway-go/headway/throttle/policy"
)

// Version is the version of the lines that this package writes.
const Version = 1

// Refused is the outcome of a task that ended before its handler ran.
const Refused = "refused"

// Task is one attempt of a task: a run, or its beginning to wait if Ended is 0. All times are µs since 1970 by Redis's clock, 0 for
// unknown.
type Task struct {
	ID       string       `json:"id,omitempty"` // see ID
	Scope    string       `json:"scope,omitempty"`
	Queue    string       `json:"queue,omitempty"`
	Cost     int64        `json:"cost,omitempty"`  // as charged at the start; 0 is 1
	Costs    policy.Costs `json:"costs,omitempty"` // by unit, instead of Cost
	Used     policy.Costs `json:"used,omitempty"`  // what the run was settled to; nil: it was not
	Priority int          `json:"priority,omitempty"`
	Member   string       `json:"member,omitempty"`
	Retried  int          `json:"retried,omitempty"` // how often it had failed before
	Wanted   int64        `json:"wanted,omitempty"`
	Started  int64        `json:"started,omitempty"`
	Ended    int64        `json:"ended,omitempty"`
	Status   int          `json:"status,omitempty"`  // of the API's last answer
	Outcome  string       `json:"outcome,omitempty"` // ok, failed, deferred, lost; Refused
}

// Process says which process records, and how much of it: when it begins, once a minute, and when it ends.
type Process struct {
	V       int     `json:"v,omitempty"` // Version
	Process string  `json:"process,omitempty"`
	At      int64   `json:"at,omitempty"`
	Slots   int     `json:"slots,omitempty"`  // how many tasks it runs at once; 0: not known
	Sample  float64 `json:"sample,omitempty"` // the part of the tenants that is recorded; 0: all
	Limits  string  `json:"limits,omitempty"` // a digest of its policy
	Lost    int64   `json:"lost,omitempty"`   // lines that it could not write so far
	Full    bool    `json:"full,omitempty"`   // the output takes no more
	End     bool    `json:"end,omitempty"`
}

// Line is one line of a record: a Process where V is set, else a Task.
type Line struct {
	Process
	Task
}

// ID returns how a record names a task: by a hash of its queue and id.
func ID(queue, id string) string { return fmt.Sprintf("%016x", hash(queue+"/"+id)) }

// Tenant returns the tenant of a scope that sampling goes by: its first two names.
func Tenant(scope string) string {
	if provider, rest, below := strings.Cut(scope, "/"); below {
		name, _, _ := strings.Cut(rest, "/")
		return provider + "/" + name
	}
	return scope
}

func hash(text string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(text))
	return h.Sum64()
}

// ErrCut says that a record ends within a line or a block: its writer was killed. What comes before was read.
var ErrCut = errors.New("demand: the record ends within a line")

// LineError is a line that is none of a record.
type LineError struct {
	Line int // from 1
	Err  error
}

func (e *LineError) Error() string { return fmt.Sprintf("line %d: %s", e.Line, e.Err) }
func (e *LineError) Unwrap() error { return e.Err }

// maxLine is how long a line may be: scopes have 512 bytes, and costs 16 units.
const maxLine = 64 << 10

// Read reads a record, in gzip or plain, and calls each with every line in order. The error is ErrCut, a *LineError, the error of r, or
// that of each, which ends the reading. A line is valid only until each returns.
func Read(r io.Reader, each func(*Line) error) error {
	in := bufio.NewReaderSize(r, maxLine)
	if magic, _ := in.Peek(2); bytes.Equal(magic, []byte{0x1f, 0x8b}) {
		z, err := gzip.NewReader(in)
		if err != nil {
			return cut(err)
		}
		in = bufio.NewReaderSize(z, maxLine)
	}
	var line Line
	for number := 1; ; number++ {
		text, err := in.ReadSlice('\n')
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			return &LineError{number, fmt.Errorf("it is longer than %d bytes", maxLine)}
		case errors.Is(err, io.EOF) && len(bytes.TrimSpace(text)) == 0:
			return nil
		case err != nil && !errors.Is(err, io.EOF):
			return cut(err)
		}
		if len(bytes.TrimSpace(text)) > 0 {
			line = Line{}
			if bad := parse(text, &line); bad != nil && err != nil && number > 1 && !json.Valid(text) { // a last line without its end
				return ErrCut
			} else if bad != nil {
				return &LineError{number, bad}
			}
			if err := each(&line); err != nil {
				return err
			}
		}
		if err != nil {
			return nil
		}
	}
}

func cut(err error) error {
	if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, gzip.ErrHeader) || errors.Is(err, gzip.ErrChecksum) {
		return ErrCut
	}
	return err
}

// parse reads one line, and checks what a replay depends on.
func parse(text []byte, line *Line) error {
	if err := json.Unmarshal(text, line); err != nil {
		return errors.New(strings.TrimPrefix(err.Error(), "json: "))
	}
	t := &line.Task
	switch {
	case line.V > Version:
		return fmt.Errorf("it is of version %d; this program reads version %d", line.V, Version)
	case line.V > 0:
		return nil
	case t.Scope == "":
		return errors.New("it has no scope")
	case t.Cost < 0, t.Wanted < 0, t.Started < 0, t.Started > 0 && t.Ended < t.Started, t.Wanted == 0 && t.Started == 0:
		return errors.New("its cost or its times cannot be: wanted or started in µs since 1970, and ended after started")
	}
	if _, err := policy.ParseScope(t.Scope); err != nil {
		return err
	}
	for _, costs := range []policy.Costs{t.Costs, t.Used} {
		if len(costs) > 0 {
			if err := costs.CheckUnits(); err != nil {
				return err
			}
		}
	}
	return nil
}
