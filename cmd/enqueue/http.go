package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/headway-go/headway/cmd/internal/cli"
	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/queue/httpsyntax"
	"github.com/headway-go/headway/throttle/policy"
)

const httpExample = "enqueue http -scope payments/acme https://api.example.com/charge"

// http enqueues one outbound request.
func (c *command) http(ctx context.Context, args []string) int {
	f := newHTTPFlags(c.name)
	c.typed = f.command
	if _, code, done := f.command.Parse(args, c.getenv, c.stdout, c.stderr); done {
		return code
	}
	task, err := f.read()
	if err != nil {
		return c.usageError(err)
	}
	if body, ok := strings.CutPrefix(f.body, "@"); ok {
		if task.HTTP.Body, err = readBody(body); err != nil {
			return c.fail(err)
		}
	}
	if err := task.Validate(); err != nil {
		return c.usageError(explainFlags(err, "enqueue http -h"))
	}
	if err := task.CheckMethod(f.allowMethods); err != nil {
		return c.usageError(explainFlags(err, "enqueue http -h"))
	}
	rdb, client, err := c.open(ctx, &f.target)
	if err != nil {
		if ctx.Err() != nil {
			return c.interrupted(ctx, "; nothing was enqueued", "")
		}
		return c.fail(err)
	}
	defer func() { _ = rdb.Close() }()
	// Not ctx: a signal that comes now must not leave it unknown whether the task
	// was enqueued.
	result, err := client.Enqueue(context.WithoutCancel(ctx), task)
	return c.httpResult(&f.target, result, err)
}

func (c *command) httpResult(t *target, result queue.Result, err error) int {
	if result.State == queue.Invalid {
		err = explainFlags(err, "")
	} else {
		err = cli.Explain(err, t.redis)
	}
	var werr error
	notes := appNotes{policy: c.policy}
	if text := notes.warning(result); text != "" && !t.json {
		_, _ = fmt.Fprintf(c.stderr, "%s: %s", c.name, text)
	}
	if text := (&timeoutNote{most: t.maxTimeout}).warning(result); text != "" {
		_, _ = fmt.Fprintf(c.stderr, "%s: %s", c.name, text)
	}
	switch {
	case t.json:
		_, werr = c.stdout.Write(appendResult(nil, result, notes.of(result), reason(result, err)))
	case err == nil:
		id, failed := cli.Quote(result.ID), ""
		if result.Archived {
			failed = ", whose task failed for good; worker tasks run " + id + " runs it again"
		}
		_, werr = fmt.Fprintf(c.stdout, "%s %s in queue %s%s\n", result.State, id, cli.Quote(result.Queue), failed)
	}
	if err == nil && werr != nil {
		err = fmt.Errorf("cannot write the result: %w", werr)
	}
	if err != nil {
		return c.fail(err)
	}
	return cli.ExitOK
}

// httpFlags are the flags of enqueue http. Those that may be refused are read
// by hand, so that faults are reported in the words of the manual.
type httpFlags struct {
	target
	command *cli.Command
	set     *flag.FlagSet
	task    queue.Task
	request queue.HTTP
	headers []string
	body    string
}

func newHTTPFlags(name string) *httpFlags {
	command := cli.NewCommand(name, usageHTTP)
	command.About = "enqueue one HTTP request"
	f := &httpFlags{command: command, set: command.Flags}
	f.task.Remember = defaultRemember
	f.register(f.set)
	f.set.StringVar(&f.task.Scope, "scope", "", "")
	f.set.StringVar(&f.task.ID, "id", "", "")
	f.set.StringVar(&f.task.Queue, "queue", queue.DefaultQueue, "")
	cli.ChoiceVar(f.set, &f.request.Method, "method", queue.DefaultMethod, httpsyntax.StandardMethods()...)
	f.set.StringVar(&f.body, "body", "", "")
	f.set.Func("cost", "", f.cost)
	number(f.set, "priority", -queue.MaxPriority, queue.MaxPriority, func(n int64) { f.task.Priority = int(n) })
	number(f.set, "max-retry", 0, queue.MaxRetries, func(n int64) { f.task.MaxRetry = queue.Retries(int(n)) })
	duration(f.set, "delay", &f.task.Delay)
	duration(f.set, "max-wait", &f.task.MaxWait)
	duration(f.set, "remember", &f.task.Remember)
	f.set.Func("timeout", "", func(text string) error {
		d, err := queue.ParseDuration(text)
		if err == nil && d == 0 {
			err = errors.New("0 leaves no time to run")
		}
		f.task.Timeout = d
		return err
	})
	f.set.Func("deadline", "", func(text string) error {
		at, err := time.Parse(time.RFC3339Nano, text)
		if err != nil {
			return errors.New("not an RFC 3339 time, such as 2030-01-31T12:00:00Z")
		}
		f.task.Deadline = at
		return nil
	})
	f.set.Func("header", "", func(text string) error {
		f.headers = append(f.headers, text) // read later: the flag package would quote a secret
		return nil
	})
	return f
}

// read returns the task, its body aside where it stands in a file.
func (f *httpFlags) read() (queue.Task, error) {
	url, err := argument(f.set, "URL", httpExample)
	if err != nil {
		return queue.Task{}, err
	}
	if name := emptyFlag(f.set); name != "" {
		return queue.Task{}, cli.Errorf("leave -"+name+" out for its default, or check for an unset variable", "-%s is empty", name)
	}
	if f.task.Scope == "" {
		return queue.Task{}, cli.Errorf(httpExample, "-scope is required: the path that the request spends from")
	}
	f.request.URL = url
	if !strings.HasPrefix(f.body, "@") {
		f.request.Body = f.body
	}
	for i, text := range f.headers {
		name, value, ok := strings.Cut(text, ":")
		name = strings.TrimSpace(name)
		if _, twice := f.request.Headers[name]; !ok || twice {
			return queue.Task{}, cli.Errorf(`enqueue http -header "X-Tenant: acme" …`,
				"-header number %d is not NAME: VALUE, or its name was given before", i+1)
		}
		if f.request.Headers == nil {
			f.request.Headers = make(map[string]string)
		}
		f.request.Headers[name] = strings.TrimSpace(value)
	}
	f.task.Type, f.task.HTTP = queue.TypeHTTP, &f.request
	return f.task, nil
}

// emptyFlag returns a flag that was given an empty text and may not have one. A
// script whose variable is unset must not get a random id instead.
func emptyFlag(fs *flag.FlagSet) (name string) {
	fs.Visit(func(f *flag.Flag) {
		switch f.Name {
		case "scope", "id", "queue", "method":
			if f.Value.String() == "" {
				name = f.Name
			}
		}
	})
	return name
}

// readBody reads a file that may hold as much as a line of a batch.
func readBody(path string) (string, error) {
	file, err := os.Open(path)
	if err != nil {
		return "", explainFile("the body", err)
	}
	defer func() { _ = file.Close() }()
	body, err := io.ReadAll(io.LimitReader(file, queue.MaxLine+1))
	if err != nil {
		return "", explainFile("the body", err)
	}
	if len(body) > queue.MaxLine {
		return "", cli.Errorf("put it where the API can fetch it, and send its address",
			"the body in %s is longer than %d bytes", path, queue.MaxLine)
	}
	return string(body), nil
}

// cost reads a number, or costs by unit.
func (f *httpFlags) cost(text string) (err error) {
	if !strings.Contains(text, "=") {
		f.task.Costs = nil
		return readNumber(text, 1, queue.MaxCost, func(n int64) { f.task.Cost = n })
	}
	if f.task.Costs, err = policy.ParseCosts(text); err != nil {
		return errors.New(strings.TrimPrefix(err.Error(), "throttle: costs: "))
	}
	f.task.Cost = 0
	return nil
}

// number adds a flag that is a whole number within bounds.
func number(fs *flag.FlagSet, name string, low, high int64, set func(int64)) {
	fs.Func(name, "", func(text string) error { return readNumber(text, low, high, set) })
}

func readNumber(text string, low, high int64, set func(int64)) error {
	n, err := strconv.ParseInt(text, 10, 64)
	switch {
	case errors.Is(err, strconv.ErrSyntax):
		return errors.New("not a whole number in plain digits")
	case n < low:
		return fmt.Errorf("below %d", low)
	case n > high:
		return fmt.Errorf("above %d", high)
	}
	set(n)
	return nil
}

func duration(fs *flag.FlagSet, name string, d *time.Duration) {
	fs.Func(name, "", func(text string) error {
		span, err := queue.ParseDuration(text)
		*d = span
		return err
	})
}

// explainFlags reports the faults of a task by the flags that they came from.
func explainFlags(err error, try string) error {
	invalid, ok := errors.AsType[*queue.InvalidError](err)
	if !ok {
		return err
	}
	told := make([]string, len(invalid.Faults))
	for i, fault := range invalid.Faults {
		told[i] = flagOf(fault.Field) + ": " + fault.Reason
	}
	return &cli.Error{What: strings.Join(told, "\n"), Try: try, Err: err}
}

func flagOf(field string) string {
	switch field {
	case "http.url":
		return "URL"
	case "http.headers":
		return "-header"
	}
	return "-" + strings.ReplaceAll(strings.TrimPrefix(field, "http."), "_", "-")
}
