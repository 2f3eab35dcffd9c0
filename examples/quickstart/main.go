// Command quickstart is the demo: it starts an outbound API that counts what arrives, lets worker and enqueue carry out the tasks
// in this directory under its limits.yaml, and judges from the API's own log whether any limit was exceeded and whether anything
// was lost.
//
//	make demo
//
// which builds both programs first. It exits 0 only if every limit was kept and every task arrived.
package main

//go:generate sh -c "go run ./gen > tasks.ndjson"

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/term"

	"github.com/headway-go/headway/test/checker"
	"github.com/headway-go/headway/test/countapi"
)

const usage = `usage: quickstart [flags]

Runs the tasks of examples/quickstart through worker and enqueue against an API
of ours, and prints for each scope and rule what arrived there.

  -dir DIR       where limits.yaml and tasks.ndjson are (default examples/quickstart)
  -worker FILE   the worker program (default bin/worker; make build makes it)
  -enqueue FILE  the enqueue program (default bin/enqueue)
  -api ADDR      where the API listens, as the tasks have it (default 127.0.0.1:18080)
  -log FILE      keep the API's log, one JSON object a line (default none)
  -idle D        give up when nothing has arrived for so long (default 1m)
  -jitter D      transit jitter that the checker allows for (default 0s)
  -page          serve the worker's page too, and keep both running until Ctrl-C
  -v             show worker's log while it runs

exit codes: 0 limits kept and nothing lost, 1 not so, 2 bad usage, 130 interrupted
`

// config is the flags.
type config struct {
	dir, worker, enqueue, api, log string
	idle, jitter                   time.Duration
	page, verbose                  bool
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal ends the demo at once
	os.Exit(run(ctx, net.Listen, os.Args[1:], os.Stdout, os.Stderr))
}

// listener is net.Listen, or a test's, which holds the port since it was drawn.
type listener func(network, addr string) (net.Listener, error)

// run is the program: results go to stdout, progress and complaints to stderr.
func run(ctx context.Context, listen listener, args []string, stdout, stderr io.Writer) int {
	cfg, err := parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		fmt.Fprint(stdout, usage)
		return 0
	case err != nil:
		fmt.Fprintf(stderr, "quickstart: %v\ntry: quickstart -h\n", err)
		return 2
	}
	rep, err := demo(ctx, listen, cfg, stdout, stderr)
	switch {
	case ctx.Err() != nil && rep == nil:
		fmt.Fprintln(stderr, "quickstart: interrupted")
		return 130
	case err != nil:
		fmt.Fprintf(stderr, "quickstart: %v\n", err)
		return 1
	case !rep.OK():
		fmt.Fprintln(stdout, "The demo failed.")
		return 1
	}
	return 0
}

// legend says what the columns of the table are.
const legend = `
units: what the calls cost. worst: the most in any one window, or at once, of what is allowed.
used: how much of the limit was used while tasks waited; a margin of limits.yaml takes its part of it.
lost: tasks that never arrived. pick-ups a task: how often a worker took each, more on a busy machine.
`

// write prints what came of it, in words first where all is well, then by scope and rule.
func write(w io.Writer, rep *checker.Report, well bool) error {
	if well {
		const verdict = "No limit was exceeded and nothing was lost: %d calls of %d tasks, judged from the API's own log.\n\n"
		if _, err := fmt.Fprintf(w, verdict, rep.Calls, rep.Tasks); err != nil {
			return err
		}
	}
	_, err := fmt.Fprint(w, rep, legend)
	return err
}

func parse(args []string) (config, error) {
	var c config
	f := flag.NewFlagSet("quickstart", flag.ContinueOnError)
	f.SetOutput(io.Discard)
	f.Usage = func() {}
	f.StringVar(&c.dir, "dir", filepath.Join("examples", "quickstart"), "")
	f.StringVar(&c.worker, "worker", filepath.Join("bin", "worker"), "")
	f.StringVar(&c.enqueue, "enqueue", filepath.Join("bin", "enqueue"), "")
	f.StringVar(&c.api, "api", "127.0.0.1:18080", "")
	f.StringVar(&c.log, "log", "", "")
	f.DurationVar(&c.idle, "idle", time.Minute, "")
	f.DurationVar(&c.jitter, "jitter", 0, "")
	f.BoolVar(&c.page, "page", false, "")
	f.BoolVar(&c.verbose, "v", false, "")
	if err := f.Parse(args); err != nil {
		return c, err
	}
	if f.NArg() > 0 {
		return c, fmt.Errorf("unexpected argument %q", f.Arg(0))
	}
	if c.idle <= 0 || c.jitter < 0 {
		return c, errors.New("-idle must be above zero and -jitter not below it")
	}
	return c, nil
}

// demo runs the tasks, judges the calls that arrived and prints that. A report comes with an error
// where the API has seen calls and something else went wrong.
func demo(ctx context.Context, listen listener, cfg config, stdout, stderr io.Writer) (*checker.Report, error) {
	in, err := load(cfg)
	if err != nil {
		return nil, err
	}
	for _, program := range []string{cfg.worker, cfg.enqueue} {
		if _, err := os.Stat(program); err != nil {
			return nil, fmt.Errorf("%w\ntry: make demo, which builds the programs first", err)
		}
	}
	api, closeLog, err := startAPI(listen, cfg)
	if err != nil {
		return nil, err
	}
	defer api.Close()
	d := &driver{cfg: cfg, api: api, in: in, out: stderr}
	d.report = func(rep *checker.Report, well bool) error {
		return errors.Join(write(stdout, rep, well), plot(stdout, rep, api.Log()))
	}
	if f, ok := stderr.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		d.width = func() int {
			width, _, err := term.GetSize(int(f.Fd()))
			if err != nil {
				return 80
			}
			return width
		}
	}
	err = d.drive(ctx)
	err = errors.Join(err, api.Close(), closeLog())
	if d.reported != nil {
		return d.reported, err
	}
	if calls, _ := api.Counts(); calls == 0 && err != nil || ctx.Err() != nil {
		return nil, err
	}
	rep, checkErr := d.check()
	if err = errors.Join(err, checkErr); rep != nil {
		err = errors.Join(err, d.report(rep, err == nil && rep.OK()))
	}
	return rep, err
}

// load reads what the checker needs to know beforehand.
func load(cfg config) (checker.Input, error) {
	text, err := os.ReadFile(filepath.Join(cfg.dir, "limits.yaml"))
	if err != nil {
		return checker.Input{}, fmt.Errorf("%w\ntry: run make demo in the repository's root, or name the directory with -dir", err)
	}
	limits, err := checker.ParseLimits(text)
	if err != nil {
		return checker.Input{}, err
	}
	text, err = os.ReadFile(filepath.Join(cfg.dir, "tasks.ndjson"))
	if err != nil {
		return checker.Input{}, err
	}
	tasks, err := checker.ReadTasks(bytes.NewReader(text))
	if err != nil {
		return checker.Input{}, err
	}
	return checker.Input{Limits: limits, Tasks: tasks, Jitter: cfg.jitter}, nil
}

// startAPI starts the counting API, with its log in a file where that is wanted.
func startAPI(listen listener, cfg config) (*countapi.Server, func() error, error) {
	closeLog := func() error { return nil }
	var log io.Writer
	if cfg.log != "" {
		f, err := os.Create(cfg.log)
		if err != nil {
			return nil, nil, err
		}
		log, closeLog = f, f.Close
	}
	l, err := listen("tcp", cfg.api)
	if err == nil {
		return countapi.Serve(l, log), closeLog, nil
	}
	if errors.Is(err, syscall.EADDRINUSE) {
		err = fmt.Errorf("the outbound API cannot listen at %s: something else does, another demo perhaps\n"+
			"try: end it; ss -ltnp 'sport = :%s' shows what it is", cfg.api, cfg.api[strings.LastIndex(cfg.api, ":")+1:])
	}
	return nil, nil, errors.Join(err, closeLog())
}
