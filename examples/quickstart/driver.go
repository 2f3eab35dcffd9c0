package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/headway-go/headway/test/checker"
	"github.com/headway-go/headway/test/countapi"
)

const (
	readyBound = 30 * time.Second // for worker to answer /healthz
	endBound   = 30 * time.Second // for worker to end after SIGTERM
	pollStep   = 50 * time.Millisecond
)

// embeddedURL is where worker's embedded Redis is.
const embeddedURL = "redis://127.0.0.1:6390"

// driver runs the programs and follows what arrives.
type driver struct {
	cfg   config
	api   *countapi.Server
	in    checker.Input
	out   io.Writer  // progress
	width func() int // of the terminal that out is; nil when it is none

	report   func(rep *checker.Report, well bool) error // prints what came of it
	reported *checker.Report                            // what was printed while the page stays open

	metrics string // worker's host:port, once it has said where it listens
	pickUps float64
}

// drive runs everything until all ids have arrived, nothing moves any more or ctx ends. It leaves no child behind.
func (d *driver) drive(ctx context.Context) error {
	worker, err := d.startWorker()
	if err != nil {
		return err
	}
	err = d.work(ctx, worker)
	if err == nil {
		d.pickUps, err = d.scrape(ctx)
	}
	if err == nil && d.cfg.page {
		err = d.hold(ctx, worker)
	}
	err = errors.Join(err, d.endWorker(worker))
	if err != nil && !d.cfg.verbose && ctx.Err() == nil {
		return fmt.Errorf("%w\nworker's log ends with:\n%s", err, worker.tail())
	}
	return err
}

// work waits for worker, feeds it and waits until all has arrived.
func (d *driver) work(ctx context.Context, worker *child) error {
	if err := d.ready(ctx, worker); err != nil {
		return err
	}
	if d.cfg.page {
		fmt.Fprintf(d.out, "the page: %s\n", d.pageURL())
	}
	if err := d.enqueue(ctx, worker); err != nil {
		return err
	}
	return d.follow(ctx, worker)
}

func (d *driver) startWorker() (*child, error) {
	var show io.Writer
	if d.cfg.verbose {
		show = d.out
	}
	args := []string{
		"-redis", "embedded",
		"-limits", filepath.Join(d.cfg.dir, "limits.yaml"),
		"-queues", strings.Join(queues(d.in.Tasks), ","),
		"-allow-host", d.cfg.api,
		"-listen", "127.0.0.1:0",
	}
	if d.cfg.page {
		args = append(args, "-page")
	}
	return startChild(d.cfg.worker, show, args...)
}

// pageURL is where worker serves its page.
func (d *driver) pageURL() string { return "http://" + d.metrics + "/page/" }

// hold prints what came of it, and keeps worker and its page running until ctx ends.
func (d *driver) hold(ctx context.Context, worker *child) error {
	rep, err := d.check()
	if err != nil {
		return err
	}
	if err := d.report(rep, rep.OK()); err != nil {
		return err
	}
	d.reported = rep
	fmt.Fprintf(d.out, "\nThe page stays open at %s until Ctrl-C.\n", d.pageURL())
	select {
	case <-ctx.Done():
		return nil
	case <-worker.gone:
		return worker.early()
	}
}

// queues returns the tasks' queues as worker takes them, all of one weight.
func queues(tasks []checker.Task) []string {
	var names []string
	for _, t := range tasks {
		names = append(names, t.Queue+"=1")
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// ready waits until worker says that it is.
func (d *driver) ready(ctx context.Context, worker *child) error {
	ctx, cancel := context.WithTimeoutCause(ctx, readyBound,
		fmt.Errorf("worker was not ready within %v", readyBound))
	defer cancel()
	return d.until(ctx, worker, func() (bool, error) {
		if d.metrics = worker.said.listensAt(); d.metrics == "" {
			return false, nil
		}
		_, err := fetch(ctx, "http://"+d.metrics+"/healthz")
		return err == nil, nil
	})
}

// enqueue runs enqueue batch to its end.
func (d *driver) enqueue(ctx context.Context, worker *child) error {
	start := time.Now()
	e, err := startChild(d.cfg.enqueue, nil, "batch",
		"-redis", embeddedURL,
		"-limits", filepath.Join(d.cfg.dir, "limits.yaml"),
		filepath.Join(d.cfg.dir, "tasks.ndjson"))
	if err != nil {
		return err
	}
	select {
	case <-e.gone:
	case <-ctx.Done():
		return errors.Join(context.Cause(ctx), e.end(endBound))
	case <-worker.gone:
		return errors.Join(worker.early(), e.end(endBound))
	}
	if e.err != nil {
		return fmt.Errorf("enqueue batch: %w; it said:\n%s", e.err, e.tail())
	}
	fmt.Fprintf(d.out, "enqueued %d tasks of %d queues in %v\n",
		len(d.in.Tasks), len(queues(d.in.Tasks)), time.Since(start).Round(time.Millisecond))
	return nil
}

// follow waits until every id has arrived with success, showing how it goes, or
// until no call has arrived for so long that none is to be expected.
func (d *driver) follow(ctx context.Context, worker *child) error {
	p := newProgress(d.out, d.width, len(d.in.Tasks))
	defer p.end()
	calls, moved := 0, time.Now()
	return d.until(ctx, worker, func() (bool, error) {
		n, succeeded := d.api.Counts()
		if n != calls {
			calls, moved = n, time.Now()
		}
		if succeeded >= len(d.in.Tasks) {
			p.show(n, succeeded, d.fullest)
			return true, nil
		}
		if time.Since(moved) > d.cfg.idle {
			return false, fmt.Errorf("no call has arrived for %v; %d of %d tasks have", d.cfg.idle, succeeded, len(d.in.Tasks))
		}
		p.tick(n, succeeded, d.fullest)
		return false, nil
	})
}

// until asks done again and again until it answers, ctx ends or worker does.
func (d *driver) until(ctx context.Context, worker *child, done func() (bool, error)) error {
	tick := time.NewTicker(pollStep)
	defer tick.Stop()
	for {
		if ok, err := done(); ok || err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-worker.gone:
			return worker.early()
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// endWorker asks worker to end, which finishes what runs. A worker that ends badly is a failure of the demo.
func (d *driver) endWorker(worker *child) error {
	select {
	case <-worker.gone:
		return nil // has been reported already
	default:
	}
	if err := worker.end(endBound); err != nil {
		return fmt.Errorf("worker, after SIGTERM: %w", err)
	}
	return nil
}

// scrape reads worker's pick-ups.
func (d *driver) scrape(ctx context.Context) (float64, error) {
	text, err := fetch(ctx, "http://"+d.metrics+"/metrics")
	if err != nil {
		return 0, err
	}
	return pickUps(text)
}

// check judges what has arrived so far.
func (d *driver) check() (*checker.Report, error) {
	in := d.in
	in.Calls, in.Epoch, in.PickUps = d.api.Log(), d.api.Epoch(), d.pickUps
	return checker.Check(in)
}

// fullest names the rule that has come closest to its limit so far.
func (d *driver) fullest() string {
	rep, err := d.check()
	if err != nil {
		return err.Error()
	}
	var worst checker.Row
	for _, row := range rep.Rows {
		if row.Exceeded {
			return fmt.Sprintf("%s %s EXCEEDED: %d of %d", row.Scope, row.Rule, row.Worst, row.Bound)
		}
		if worst.Bound == 0 || row.Worst*worst.Bound > worst.Worst*row.Bound {
			worst = row
		}
	}
	return fmt.Sprintf("fullest %s %s: %d of %d", worst.Scope, worst.Rule, worst.Worst, worst.Bound)
}
