package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"github.com/headway-go/headway/cmd/internal/cli"
	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/worker/control"
)

const batchLong = `Enqueues the tasks of FILE, one JSON object a line; - is standard input. It reports a bad
line with its number, and enqueues the others. You can enqueue a file again: a task whose
id is taken is reported as a duplicate and left alone. At the end it prints when all tasks
are expected to have started, and which rule they wait for.

A line:
  {"type":"http","id":"inv-1","scope":"payments/acme","http":{"method":"POST","url":"https://api.example.com/charge","headers":{"X-Tenant":"acme"},"body":"{\"amount\":100}"}}

  type      "http", or a type that a Go program has registered; required
  scope     the path it spends from; required
  http      of type "http": url (required), method (default GET), headers, body
  payload   of other types: any JSON value, handed to the handler as it stands
  id        default a random one        cost      whole number (default 1)
  queue     (default default)           max_retry whole number (default 25)
  delay     duration (default 0s)       timeout   duration (http: default 30s)
  deadline  RFC 3339 (default none)     priority  whole number, higher first (default 0)
  max_wait  duration (default 0s: waits for limits as long as it takes; worker -patience)

A cost may also be by unit: {"requests":1,"tokens":1500}. Without requests they are 1.

The first interrupt stops reading and finishes the lines that were read. A second one ends
at once.`

// batchCommand is one run of enqueue batch.
type batchCommand struct {
	target
	dryRun bool
	starts bool
}

func newBatch(getenv func(string) string) *cobra.Command {
	b := &batchCommand{target: target{getenv: getenv}}
	c := &cobra.Command{
		Use: "batch FILE|-", Short: "Enqueue a file of tasks, one JSON object a line", Long: batchLong, Args: cli.Args(1, 1), RunE: b.run,
		Example: `  enqueue batch tasks.ndjson
  enqueue batch -limits limits.yaml -json tasks.ndjson
  enqueue batch -dry-run tasks.ndjson
  generate-tasks | enqueue batch -remember 7d -`,
	}
	b.flags(c)
	c.Flags().BoolVar(&b.dryRun, "dry-run", false, "enqueue nothing: check each line, and forecast the starts from what the limits have left and which tasks wait now. It does "+
		"not check whether ids are taken in Redis")
	c.Flags().BoolVar(&b.starts, "starts", false, "with -dry-run: print the expected start of each line")
	return c
}

func (b *batchCommand) run(c *cobra.Command, words []string) error {
	if b.starts && !b.dryRun {
		return cli.Usage(errors.New("-starts is for -dry-run, which forecasts the starts; -json names the start of each task that is enqueued"))
	}
	if err := b.check(c); err != nil {
		return err
	}
	src, err := openSource(c, words[0])
	if err != nil {
		return err
	}
	defer src.end()
	if err := b.open(c); err != nil {
		return err
	}
	defer b.close()
	report := newReport(c, src)
	report.json, report.dry, report.starts, report.notes = b.json, b.dryRun, b.starts, notes{policy: b.policy, maxTimeout: b.maxTimeout}
	do := b.enqueue
	if b.dryRun {
		do = b.forecast
	}
	stop := report.start()
	sum, err := do(c.Context(), remembered(queue.NewReader(src).All(), b.remember), report)
	stop()
	_, explained := errors.AsType[*cli.Error](err)
	ended := err != nil && !explained && c.Context().Err() != nil
	report.finish(sum, ended)
	switch {
	case explained:
		return err
	case ended && b.dryRun:
		return interrupted(c, err, "; nothing was enqueued", "")
	case ended:
		return interrupted(c, err, fmt.Sprintf("; %d lines were done", sum.Total()), again(sum))
	case err != nil:
		return explainFile("the tasks", err)
	case sum.Invalid > 0:
		return cli.ErrPrinted
	}
	return nil
}

// enqueue enqueues the tasks. If Redis fails, the error is a *cli.Error that names the line.
func (b *batchCommand) enqueue(ctx context.Context, entries iter.Seq[queue.Entry], report *report) (queue.Summary, error) {
	var broken queue.Result // the first that Redis failed
	sum, err := b.client.EnqueueBatch(ctx, entries, func(r queue.Result) {
		if r.State == queue.Failed {
			r.Err = cli.Explain(r.Err, b.redis)
			if broken.Err == nil {
				broken = r
				report.src.end() // it may be waiting for input
			}
		}
		report.result(r)
	})
	if broken.Err != nil {
		err = stopped(broken, sum)
	}
	return sum, err
}

// forecast finds out what enqueue would do. If Redis fails, the error is a *cli.Error.
func (b *batchCommand) forecast(ctx context.Context, entries iter.Seq[queue.Entry], report *report) (queue.Summary, error) {
	sum, err := b.client.Forecast(ctx, entries, report.result)
	if err != nil {
		if ctx.Err() == nil && errors.Is(err, throttle.ErrUnavailable) {
			err = cli.Explain(err, b.redis)
		}
		return sum, err
	}
	workers := control.New(control.Config{Redis: b.rdb})
	for _, name := range report.queues {
		if served, known := workers.Serves(ctx, name); known && !served {
			report.unserved = append(report.unserved, name)
		}
	}
	return sum, nil
}

// remembered sets Remember, which a line cannot set.
func remembered(entries iter.Seq[queue.Entry], remember time.Duration) iter.Seq[queue.Entry] {
	return func(yield func(queue.Entry) bool) {
		for e := range entries {
			e.Task.Remember = remember
			if !yield(e) {
				return
			}
		}
	}
}

// stopped says which line Redis failed at, why, and how to go on.
func stopped(broken queue.Result, sum queue.Summary) error {
	e := &cli.Error{What: broken.Err.Error()}
	errors.As(broken.Err, &e)
	return &cli.Error{
		What: fmt.Sprintf("stopped at line %d: %s", broken.Line, e.What), Try: strings.TrimPrefix(e.Try+"\n"+again(sum), "\n"), Err: broken.Err,
	}
}

// again says what giving the same lines once more would do.
func again(sum queue.Summary) string {
	const skip = "run it again: tasks that are enqueued already are reported as duplicates and left alone"
	if sum.Random == 0 {
		return skip
	}
	return fmt.Sprintf("%s; but %d enqueued lines have no id and would be enqueued twice: remove them, and give every line an id", skip, sum.Random)
}

// source reads the file of a batch and counts its bytes. When the command is interrupted or end is called,
// Read fails, even where reading the file blocks, as on a terminal.
type source struct {
	*io.PipeReader
	size int64        // 0 when unknown
	read atomic.Int64 // bytes so far
}

// openSource opens the file at path, or standard input for "-".
func openSource(c *cobra.Command, path string) (*source, error) {
	input, closeInput := c.InOrStdin(), func() error { return nil }
	if path != "-" {
		file, err := os.Open(path)
		if err != nil {
			return nil, explainFile("the tasks", err)
		}
		input, closeInput = file, file.Close
	}
	s := &source{}
	if file, ok := input.(interface{ Stat() (fs.FileInfo, error) }); ok {
		if info, err := file.Stat(); err == nil && info.Mode().IsRegular() {
			s.size = info.Size()
		}
	}
	out, in := io.Pipe()
	s.PipeReader = out
	context.AfterFunc(c.Context(), s.end)
	go func() { // it may be left behind in a read that never ends; the program ends then
		_, err := io.Copy(in, io.TeeReader(input, s))
		_ = in.CloseWithError(err)
		_ = closeInput() // it was only read
	}()
	return s, nil
}

// Write counts what was read.
func (s *source) Write(p []byte) (int, error) {
	s.read.Add(int64(len(p)))
	return len(p), nil
}

// end stops the reading.
func (s *source) end() { _ = s.CloseWithError(context.Canceled) }

// explainFile says why a file could not be read.
func explainFile(what string, err error) error {
	try := ""
	pe, ok := errors.AsType[*fs.PathError](err)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		try = "check the path; it is relative to the current directory"
	case errors.Is(err, fs.ErrPermission):
		try = "give this user permission to read it"
	case ok && pe.Op == "read":
		try = "name a file; - reads standard input"
	}
	text := err.Error()
	if ok {
		text = pe.Error() // without the layers that it came through
	}
	return &cli.Error{What: "cannot read " + what + ": " + text, Try: try, Err: err}
}
