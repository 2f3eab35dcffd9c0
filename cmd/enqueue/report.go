package main

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/headway-go/headway/cmd/internal/cli"
	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/throttle/policy"
)

const (
	flushEvery = 200 * time.Millisecond
	logEvery   = 5 * time.Second

	// listed bounds the lines of a kind that are printed though nothing is wrong with them: duplicates, say.
	listed = 20
)

// report prints results to stdout and progress to stderr. Its methods may be called from any goroutine.
type report struct {
	json     bool
	dry      bool         // nothing is enqueued
	starts   bool         // each start is printed
	queues   []string     // those of a dry run's tasks
	unserved []string     // those of them that no live worker serves
	unknown  queue.Result // the first with an unknown start, for a reason that is not in saidApart
	notes    notes
	src      *source
	began    time.Time
	log      *slog.Logger

	mu       sync.Mutex
	out      *bufio.Writer
	stderr   io.Writer
	name     string // begins a warning
	done     int
	listed   map[queue.State]int
	archived []string // ids of the first duplicates whose tasks failed for good
	logged   time.Time
}

func newReport(c *cobra.Command, src *source) *report {
	now, stderr := time.Now(), c.ErrOrStderr()
	return &report{
		src: src, began: now, logged: now,
		log: slog.New(slog.NewTextHandler(stderr, nil)), stderr: stderr, name: c.CommandPath(),
		out: bufio.NewWriterSize(c.OutOrStdout(), 64<<10), listed: map[queue.State]int{},
	}
}

// start shows progress until stop is called.
func (r *report) start() (stop func()) {
	var wg sync.WaitGroup
	ended := make(chan struct{})
	wg.Go(func() {
		ticker := time.NewTicker(flushEvery)
		defer ticker.Stop()
		for {
			select {
			case now := <-ticker.C:
				r.tick(now)
			case <-ended:
				return
			}
		}
	})
	return func() {
		close(ended)
		wg.Wait()
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
	for _, text := range r.notes.warnings(res, r.json) {
		cli.Fail(r.stderr, r.name, errors.New(text))
	}
	if r.json {
		r.write(cli.JSONLine(resultObject(res, r.notes.apps(res), reason(res, res.Err))))
		return
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
	r.printf("line %d: %s: %s\n", res.Line, res.State, cli.Escape(why))
}

// expiring is the key in listed of the lines that would expire before they start.
const expiring queue.State = "expiring"

// saidApart are the reasons for an unknown start that the summary prints anyway.
var saidApart = []queue.Reason{queue.ReasonDelay, queue.ReasonPaused, queue.ReasonUpstream}

// valid prints the start of a task that would be enqueued, if that is wanted or too late.
func (r *report) valid(res queue.Result) {
	if res.Start.IsZero() && r.unknown.Reason == "" && !slices.Contains(saidApart, res.Reason) {
		r.unknown = res
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
		r.printf("line %d:%s starts %s%s\n", res.Line, id, start, late)
	}
}

func (r *report) write(line []byte) { _, _ = r.out.Write(line) }

func (r *report) printf(format string, args ...any) { r.write(fmt.Appendf(nil, format, args...)) }

// tick prints the results that have gathered, and now and then how far it is.
func (r *report) tick(now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.flush()
	if now.Sub(r.logged) >= logEvery {
		r.logged = now
		r.log.Info("enqueueing", r.progress(now)...)
	}
}

// flush prints what has gathered. cli.Execute reports a failed write.
func (r *report) flush() { _ = r.out.Flush() }

// finish prints the summary.
func (r *report) finish(sum queue.Summary, interrupted bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	defer r.flush()
	elapsed := time.Since(r.began)
	if r.json {
		r.write(cli.JSONLine(summaryObject(sum, r.dry, r.unserved, interrupted, elapsed)))
		return
	}
	for _, state := range []queue.State{queue.Duplicate, queue.Failed, expiring} {
		if state == expiring && r.starts {
			continue // all are listed
		}
		if more := r.listed[state] - listed; more > 0 {
			r.printf("… and %d more %s (-json lists every line)\n", more, state)
		}
	}
	good, state := sum.Enqueued, queue.Enqueued
	if r.dry {
		good, state = sum.Valid, queue.Valid
	}
	r.printf("%d lines: %d %s, %d duplicate", sum.Total(), good, state, sum.Duplicate)
	if sum.Archived > 0 {
		r.printf(", %d of them failed", sum.Archived)
	}
	r.printf(", %d invalid", sum.Invalid)
	if sum.Failed > 0 {
		r.printf(", %d failed", sum.Failed)
	}
	r.printf(" in %s\n", elapsed.Round(time.Millisecond))
	if sum.Archived > 0 {
		r.printf("to run what failed again: worker tasks run %s", strings.Join(r.archived, " "))
		if more := sum.Archived - len(r.archived); more > 0 {
			r.printf(" … and %d more (-json lists every line)", more)
		}
		r.printf("\n")
	}
	done := doneText(sum, time.Now())
	if !r.dry {
		r.printf("%s", done)
		return
	}
	r.printf("nothing was enqueued. If it were enqueued now: %s", cmp.Or(done, "without limits the starts are unknown\n"))
	if sum.Expiring > 0 {
		r.printf("%d would expire before they start\n", sum.Expiring)
	}
	if why := unknownText(r.unknown); why != "" {
		r.printf("line %d has no known start%s\n", r.unknown.Line, why)
	}
	for _, name := range r.unserved {
		r.printf("no live worker serves queue %s: its tasks start when one does\n", cli.Quote(name))
	}
}

// progress returns the attributes of a log line: for a file also its percentage, and the rest of the time at the pace so far.
func (r *report) progress(now time.Time) []any {
	elapsed, read, size := now.Sub(r.began), r.src.read.Load(), r.src.size
	attrs := []any{slog.Int("lines", r.done), slog.Int("lines_per_second", int(float64(r.done)/elapsed.Seconds()))}
	if size > 0 && read > 0 {
		rest := time.Duration(float64(max(0, size-read)) / float64(read) * float64(elapsed))
		attrs = append(attrs, slog.Int64("percent", 100*min(read, size)/size), slog.Int("eta_seconds", int(rest.Round(time.Second).Seconds())))
	}
	return attrs
}

// mostAppScopes bounds the warnings of warnings.
const mostAppScopes = 20

// notes finds what to warn of. It is no error, since another application may run the tasks.
type notes struct {
	policy     *policy.Policy // nil for none
	maxTimeout time.Duration  // after which workers end a run
	scopes     map[string]bool
	timeout    bool   // whether a timeout was warned of
	misspelt   string // the last unit that was
}

// apps returns the applications that alone may run a task, nil for all.
func (n *notes) apps(r queue.Result) []string {
	if n.policy == nil || r.AppScope == "" {
		return nil
	}
	level, err := policy.ParseScope(r.AppScope)
	if err != nil {
		return nil
	}
	apps, _ := n.policy.Apps(level)
	return apps
}

// warnings warns once that a timeout is longer than workers allow, of a unit that is most likely misspelt, and once for each level that only
// some applications may run its tasks. Results in JSON have the applications, without a warning.
func (n *notes) warnings(r queue.Result, inJSON bool) (texts []string) {
	if r.State != queue.Enqueued && r.State != queue.Valid {
		return nil
	}
	if !n.timeout && r.Timeout > n.maxTimeout {
		n.timeout = true
		texts = append(texts, fmt.Sprintf("the timeout of %s is %s, but workers end a run after %s; if their -max-timeout is longer, give it to enqueue too",
			cli.Quote(r.ID), r.Timeout, n.maxTimeout))
	}
	if r.Misspelt != n.misspelt && r.Misspelt != "" {
		n.misspelt = r.Misspelt
		texts = append(texts, fmt.Sprintf("%s costs %s, which no rule of its scope counts; did you mean %s?", cli.Quote(r.ID), cli.Quote(r.Misspelt), cli.Quote(r.Meant)))
	}
	apps := n.apps(r)
	if apps == nil || inJSON || n.scopes[r.AppScope] || len(n.scopes) >= mostAppScopes {
		return texts
	}
	if n.scopes == nil {
		n.scopes = map[string]bool{}
	}
	n.scopes[r.AppScope] = true
	return append(texts, fmt.Sprintf("only workers of %s run tasks of %s (worker -app NAME); the tasks wait for one of them", cli.QuoteList(apps), cli.Quote(r.AppScope)))
}
