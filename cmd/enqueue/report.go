package main

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/headway-go/headway/cmd/internal/cli"
	"github.com/headway-go/headway/queue"
)

const (
	drawEvery = 200 * time.Millisecond
	logEvery  = 5 * time.Second
	eraseLine = "\r\x1b[K"

	// listed is how many lines are listed that need no mending each. Running a
	// batch again must not print a line for every one that was done before.
	listed = 20
)

// report prints results to stdout and progress to stderr. Its methods may be
// called from any goroutine.
type report struct {
	json     bool
	dry      bool         // nothing is enqueued
	starts   bool         // each start is printed
	plot     *startPlot   // of the starts of a dry run; nil for none
	queues   []string     // those of a dry run's tasks
	unserved []string     // those of them that no live worker serves
	unknown  queue.Result // the first whose start is unknown, but for toldApart
	apps     appNotes
	timeouts timeoutNote
	progress progressMeter
	log      *slog.Logger

	mu       sync.Mutex
	out      *bufio.Writer
	stderr   io.Writer
	warns    string    // begins a warning
	screen   io.Writer // stderr, where it is a terminal; else nil
	drawn    bool
	done     int
	listed   map[queue.State]int
	archived []string // ids of the first duplicates whose tasks failed for good
	logged   time.Time
	buf      []byte
	writeErr error
}

// progressMeter is how far a batch is: its bytes are the only thing known ahead.
type progressMeter struct {
	began time.Time
	size  int64 // 0 when unknown
	read  func() int64
}

func newReport(stdout, stderr io.Writer, json bool, src *source) *report {
	now := time.Now()
	r := &report{
		json:     json,
		progress: progressMeter{began: now, size: src.size, read: src.read.Load},
		log:      slog.New(slog.NewTextHandler(stderr, nil)),
		out:      bufio.NewWriterSize(stdout, 64<<10),
		stderr:   stderr,
		listed:   map[queue.State]int{},
		logged:   now,
	}
	if cli.IsTerminal(stderr) {
		r.screen = stderr
	}
	return r
}

// start shows progress until stop is called.
func (r *report) start() (stop func()) {
	ticker := time.NewTicker(drawEvery)
	ended, gone := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(gone)
		for {
			select {
			case now := <-ticker.C:
				r.tick(now)
			case <-ended:
				return
			}
		}
	}()
	return func() {
		ticker.Stop()
		close(ended)
		<-gone
	}
}

// result prints one result: all of them under -json, otherwise the problems.
func (r *report) result(res queue.Result) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.done++
	if res.State == queue.Valid && !slices.Contains(r.queues, res.Queue) && len(r.queues) < listed {
		r.queues = append(r.queues, res.Queue)
	}
	if text := r.timeouts.warning(res); text != "" {
		r.erase()
		_, _ = io.WriteString(r.stderr, r.warns+text)
	}
	if r.json {
		r.buf = appendResult(r.buf[:0], res, r.apps.of(res), reason(res, res.Err))
		r.write(r.buf)
		return
	}
	if text := r.apps.warning(res); text != "" {
		r.erase()
		_, _ = io.WriteString(r.stderr, r.warns+text)
	}
	if res.State == queue.Valid {
		r.valid(res)
	}
	if res.State == queue.Enqueued || res.State == queue.Valid {
		return
	}
	if res.Archived && len(r.archived) < listed {
		r.archived = append(r.archived, cli.Quote(res.ID))
	}
	r.listed[res.State]++
	if res.State != queue.Invalid && r.listed[res.State] > listed {
		return
	}
	why := reason(res, res.Err)
	switch {
	case res.State == queue.Duplicate && r.dry:
		why = fmt.Sprintf("id %s of queue %s is on a line before", cli.Quote(res.ID), cli.Quote(res.Queue))
	case res.State == queue.Duplicate:
		why = fmt.Sprintf("id %s is taken in queue %s", cli.Quote(res.ID), cli.Quote(res.Queue))
		if res.Archived {
			why += ", by a task that failed for good"
		}
	}
	r.write(fmt.Appendf(r.buf[:0], "line %d: %s: %s\n", res.Line, res.State, cli.Escape(why)))
}

// expiring is the key under which lines are counted that would expire before they start.
const expiring queue.State = "expiring"

// toldApart are reasons for an unknown start that the summary has anyway.
var toldApart = []queue.Reason{queue.ReasonDelay, queue.ReasonPaused, queue.ReasonUpstream}

// valid prints the start of a task that would be enqueued, if that is wanted or too late.
func (r *report) valid(res queue.Result) {
	switch {
	case res.Start.IsZero():
		if r.unknown.Reason == "" && !slices.Contains(toldApart, res.Reason) {
			r.unknown = res
		}
	case r.plot != nil:
		r.plot.add(res.Start)
	}
	start, late := startText(res), ""
	switch res.Expires {
	case "deadline":
		late = ", after its deadline: it would never start"
	case "max_wait":
		late = ", after its max_wait"
	}
	if late != "" {
		r.listed[expiring]++
	}
	if r.starts || late != "" && r.listed[expiring] <= listed {
		id := ""
		if res.ID != "" { // else it gets a random one
			id = " " + cli.Quote(res.ID)
		}
		r.write(fmt.Appendf(r.buf[:0], "line %d:%s starts %s%s\n", res.Line, id, start, late))
	}
}

func (r *report) write(line []byte) {
	if r.out.Available() < len(line) {
		r.erase()
		r.flush()
	}
	if _, err := r.out.Write(line); err != nil && r.writeErr == nil {
		r.writeErr = err
	}
}

// tick shows what has gathered: the results, then how far it is.
func (r *report) tick(now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.screen == nil {
		r.flush()
		if now.Sub(r.logged) >= logEvery {
			r.logged = now
			r.log.Info("enqueueing", r.progress.attrs(r.done, now)...)
		}
		return
	}
	// Results may go to the same terminal: they need a line of their own.
	if r.out.Buffered() > 0 {
		r.erase()
		r.flush()
	}
	_, _ = io.WriteString(r.screen, eraseLine+r.progress.text(r.done, now))
	r.drawn = true
}

func (r *report) erase() {
	if r.drawn {
		_, _ = io.WriteString(r.screen, eraseLine)
		r.drawn = false
	}
}

func (r *report) flush() {
	if err := r.out.Flush(); err != nil && r.writeErr == nil {
		r.writeErr = err
	}
}

// finish prints the summary and returns the first error of writing results.
func (r *report) finish(sum queue.Summary, interrupted bool) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.erase()
	elapsed := time.Since(r.progress.began)
	if r.json {
		r.write(appendSummary(nil, sum, r.dry, r.unserved, interrupted, elapsed))
		r.flush()
		return r.writeErr
	}
	for _, state := range []queue.State{queue.Duplicate, queue.Failed, expiring} {
		if state == expiring && r.starts {
			continue // all are listed
		}
		if more := r.listed[state] - listed; more > 0 {
			r.write(fmt.Appendf(nil, "… and %d more %s (-json lists every line)\n", more, state))
		}
	}
	good, state := sum.Enqueued, queue.Enqueued
	if r.dry {
		good, state = sum.Valid, queue.Valid
	}
	r.write(fmt.Appendf(nil, "%d lines: %d %s, %d duplicate", sum.Total(), good, state, sum.Duplicate))
	if sum.Archived > 0 {
		r.write(fmt.Appendf(nil, ", %d of them failed", sum.Archived))
	}
	r.write(fmt.Appendf(nil, ", %d invalid", sum.Invalid))
	if sum.Failed > 0 {
		r.write(fmt.Appendf(nil, ", %d failed", sum.Failed))
	}
	r.write(fmt.Appendf(nil, " in %s\n", elapsed.Round(time.Millisecond)))
	if sum.Archived > 0 {
		r.write(fmt.Appendf(nil, "to run what failed again: worker tasks run %s", strings.Join(r.archived, " ")))
		if more := sum.Archived - len(r.archived); more > 0 {
			r.write(fmt.Appendf(nil, " … and %d more (-json lists every line)", more))
		}
		r.write([]byte("\n"))
	}
	if done := doneText(sum, time.Now()); r.dry {
		r.write([]byte("nothing was enqueued. If it were enqueued now: "))
		r.write([]byte(cmp.Or(done, "without limits the starts are unknown\n")))
		if sum.Expiring > 0 {
			r.write(fmt.Appendf(nil, "%d would expire before they start\n", sum.Expiring))
		}
		if why := unknownText(r.unknown); why != "" {
			r.write(fmt.Appendf(nil, "line %d has no known start%s\n", r.unknown.Line, why))
		}
		for _, name := range r.unserved {
			r.write(fmt.Appendf(nil, "no live worker serves queue %s: its tasks start when one does\n", cli.Quote(name)))
		}
		r.write([]byte(r.plot.String()))
	} else {
		r.write([]byte(done))
	}
	r.flush()
	return r.writeErr
}

// rate returns lines a second, and how long the rest will take at the pace so
// far; a negative rest is unknown.
func (p progressMeter) rate(done int, now time.Time) (rate float64, percent int, rest time.Duration) {
	elapsed := now.Sub(p.began)
	if elapsed > 0 {
		rate = float64(done) / elapsed.Seconds()
	}
	read := p.read()
	if p.size == 0 || read == 0 {
		return rate, 0, -1
	}
	left := float64(max(0, p.size-read)) / float64(read)
	return rate, int(100 * min(read, p.size) / p.size), time.Duration(left * float64(elapsed))
}

func (p progressMeter) text(done int, now time.Time) string {
	rate, percent, rest := p.rate(done, now)
	text := fmt.Sprintf("%d lines, %.0f/s", done, rate)
	if rest >= 0 {
		text += fmt.Sprintf(", %d %%, %s left", percent, rest.Round(time.Second))
	}
	return text
}

func (p progressMeter) attrs(done int, now time.Time) []any {
	rate, percent, rest := p.rate(done, now)
	attrs := []any{slog.Int("lines", done), slog.Int("lines_per_second", int(rate))}
	if rest >= 0 {
		attrs = append(attrs, slog.Int("percent", percent), slog.Int("eta_seconds", int(rest.Round(time.Second).Seconds())))
	}
	return attrs
}
