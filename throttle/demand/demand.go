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
	"cmp"
	"compress/flate"
	"compress/gzip"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
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

// tenant returns the tenant of a scope that sampling goes by: its first two names.
func tenant(scope string) string {
	provider, rest, _ := strings.Cut(scope, "/")
	name, _, _ := strings.Cut(rest, "/")
	return provider + "/" + name
}

func hash(text string) uint64 {
	sum := sha256.Sum256([]byte(text))
	return binary.BigEndian.Uint64(sum[:])
}

// ErrCut says that a record is cut off or damaged within a line or a block. What comes before was read, and nothing behind it.
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
	in := bufio.NewReader(r)
	lines := bufio.NewScanner(in)
	if magic, _ := in.Peek(2); string(magic) == "\x1f\x8b" {
		z, err := gzip.NewReader(in)
		if err != nil {
			return cut(err)
		}
		lines = bufio.NewScanner(z)
	}
	lines.Buffer(nil, maxLine)
	var line Line
	number := 1
	for ; lines.Scan(); number++ {
		text := lines.Bytes()
		if len(bytes.TrimSpace(text)) == 0 {
			continue
		}
		line = Line{}
		if bad := line.parse(text); bad != nil {
			if last := !json.Valid(text) && !lines.Scan(); last && (number > 1 || lines.Err() != nil) {
				return cmp.Or(cut(lines.Err()), ErrCut)
			}
			return &LineError{number, bad}
		}
		if err := each(&line); err != nil {
			return err
		}
	}
	if errors.Is(lines.Err(), bufio.ErrTooLong) {
		return &LineError{number, fmt.Errorf("it is longer than %d bytes", maxLine)}
	}
	return cut(lines.Err())
}

// cut returns ErrCut for the errors of a block that is damaged or not whole.
func cut(err error) error {
	for _, damage := range []error{io.ErrUnexpectedEOF, gzip.ErrHeader, gzip.ErrChecksum} {
		if errors.Is(err, damage) {
			return ErrCut
		}
	}
	if errors.As(err, new(flate.CorruptInputError)) {
		return ErrCut
	}
	return err
}

// parse reads one line, and checks what a replay depends on.
func (l *Line) parse(text []byte) error {
	if err := json.Unmarshal(text, l); err != nil {
		return errors.New(strings.TrimPrefix(err.Error(), "json: "))
	}
	t := &l.Task
	switch {
	case l.V > Version:
		return fmt.Errorf("it is of version %d; this program reads version %d", l.V, Version)
	case l.V > 0:
		return nil
	case t.Scope == "":
		return errors.New("it has no scope")
	case t.Cost < 0, t.Wanted < 0, t.Started < 0, t.Started > 0 && t.Ended < t.Started, t.Wanted == 0 && t.Started == 0:
		return errors.New("its cost or its times cannot be: wanted or started in µs since 1970, and ended after started")
	}
	_, err := policy.ParseScope(t.Scope)
	for _, costs := range []policy.Costs{t.Costs, t.Used} {
		if err == nil && len(costs) > 0 {
			err = costs.CheckUnits()
		}
	}
	return err
}
