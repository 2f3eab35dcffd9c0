package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/headway-go/headway/cmd/internal/cli"
	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/queue/httpsyntax"
	"github.com/headway-go/headway/throttle/policy"
)

// httpCommand is one run of enqueue http. The flags that may hold secrets are strings, since no error quotes a string flag.
type httpCommand struct {
	target
	task     queue.Task
	request  queue.HTTP
	headers  []string
	body     string
	maxRetry int
}

func newHTTP(getenv func(string) string) *cobra.Command {
	h := &httpCommand{target: target{getenv: getenv}}
	c := &cobra.Command{
		Use: "http URL", Short: "Enqueue one outbound HTTP request", Args: cli.Args(1, 1), RunE: h.run,
		Long: `Enqueues one outbound HTTP request. A worker sends it when the limits of its scope allow.
A duration is 500ms, 90s, 1h30m or 30d. If the id is taken, it is reported as a duplicate,
and nothing is changed.`,
		Example: `  enqueue http -scope payments/acme https://api.example.com/ping
  enqueue http -scope payments/acme -id inv-1 -method POST -body '{"amount":100}' https://api.example.com/charge
  enqueue http -scope search/plan -cost 5 -delay 10m -header "X-Tenant: acme" https://api.example.com/search`,
	}
	h.flags(c)
	fs := c.Flags()
	fs.StringVar(&h.task.Scope, "scope", "", "the path that it spends from, a `SCOPE` such as payments/acme/refunds; required")
	fs.StringVar(&h.task.ID, "id", "", "name of the task within its queue, an `ID`. Default: a random one")
	fs.StringVar(&h.task.Queue, "queue", queue.DefaultQueue, "queue `NAME`")
	cli.ChoiceVar(c, &h.request.Method, "method", queue.DefaultMethod, "request `METHOD`: GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS, or one that -allow-method names", httpsyntax.StandardMethods()...)
	fs.StringVar(&h.body, "body", "", "request `BODY`; @FILE reads it from a file")
	fs.StringArrayVar(&h.headers, "header", nil, "request header, `\"NAME: VALUE\"`. May be repeated")
	fs.Func("cost", "units that it takes under each limit, a whole `NUMBER` (default 1), or by unit: requests=1,tokens=1500", h.cost)
	fs.IntVar(&h.task.Priority, "priority", 0, "of the tasks of a scope that wait in its queue, the highest `N` goes first: from -1000000 to 1000000")
	fs.IntVar(&h.maxRetry, "max-retry", queue.DefaultMaxRetry, "`N` retries after failures; waiting for a limit is no failure")
	cli.DurationVar(fs, &h.task.Delay, "delay", 0, "do not start before this from now")
	cli.DurationVar(fs, &h.task.MaxWait, "max-wait", 0, "wait for limits this long at most, then do what the worker's -patience says. Default: as long as it takes")
	cli.DurationVar(fs, &h.task.Timeout, "timeout", queue.DefaultTimeout, "how long one run may take from its start; waiting for a turn does not count")
	cli.TimeVar(fs, &h.task.Deadline, "deadline", "do not start after this `TIME`, such as 2030-01-31T12:00:00Z")
	return c
}

func (h *httpCommand) run(c *cobra.Command, words []string) error {
	if err := h.check(c); err != nil {
		return err
	}
	if err := h.read(c, words[0]); err != nil {
		return cli.Usage(err)
	}
	if path, is := strings.CutPrefix(h.body, "@"); is {
		body, err := readBody(path)
		if err != nil {
			return err
		}
		h.request.Body = body
	}
	err := h.task.Validate()
	if err == nil {
		err = h.task.CheckMethod(h.methods)
	}
	if err != nil {
		return cli.Usage(explainFlags(err, "enqueue http -h"))
	}
	if err := h.open(c); err != nil {
		return err
	}
	defer h.close()
	// Without a signal: one that comes now must not leave it unknown whether the task was enqueued.
	result, err := h.client.Enqueue(context.WithoutCancel(c.Context()), h.task)
	return h.print(c, result, err)
}

func (h *httpCommand) print(c *cobra.Command, result queue.Result, err error) error {
	if result.State == queue.Invalid {
		err = explainFlags(err, "")
	} else {
		err = cli.Explain(err, h.redis)
	}
	notes := notes{policy: h.policy, maxTimeout: h.maxTimeout}
	for _, text := range notes.warnings(result, h.json) {
		cli.Fail(c.ErrOrStderr(), c.CommandPath(), errors.New(text))
	}
	out := cli.Output{W: c.OutOrStdout(), JSON: h.json}
	switch {
	case h.json:
		out.Print(resultObject(result, notes.apps(result), reason(result, err)), "")
	case err == nil:
		id, failed := cli.Quote(result.ID), ""
		if result.Archived {
			failed = ", whose task failed for good; worker tasks run " + id + " runs it again"
		}
		out.Text(fmt.Sprintf("%s %s in queue %s%s", result.State, id, cli.Quote(result.Queue), failed))
	}
	return err
}

// read builds the task from the flags. A body in a file is read later.
func (h *httpCommand) read(c *cobra.Command, url string) error {
	for _, name := range []string{"scope", "id", "queue", "method"} {
		// A script whose variable is unset must not get a random id instead.
		if f := c.Flags().Lookup(name); f.Changed && f.Value.String() == "" {
			return cli.Errorf("leave -"+name+" out for its default, or check for an unset variable", "-%s is empty", name)
		}
	}
	if h.task.Scope == "" {
		return cli.Errorf("enqueue http -scope payments/acme https://api.example.com/charge", "-scope is required: the path that the request spends from")
	}
	if h.task.Timeout == 0 {
		return cli.Errorf("-timeout 30s", "-timeout 0 leaves no time to run")
	}
	for i, text := range h.headers {
		name, value, ok := strings.Cut(text, ":")
		name = strings.TrimSpace(name)
		if _, twice := h.request.Headers[name]; !ok || twice {
			return cli.Errorf(`enqueue http -header "X-Tenant: acme" …`, "-header number %d is not NAME: VALUE, or its name was given before", i+1)
		}
		if h.request.Headers == nil {
			h.request.Headers = make(map[string]string)
		}
		h.request.Headers[name] = strings.TrimSpace(value)
	}
	if !strings.HasPrefix(h.body, "@") {
		h.request.Body = h.body
	}
	h.request.URL, h.task.Type, h.task.HTTP = url, queue.TypeHTTP, &h.request
	h.task.MaxRetry, h.task.Remember = queue.Retries(h.maxRetry), h.remember
	return nil
}

// readBody reads a file of up to queue.MaxLine bytes.
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
func (h *httpCommand) cost(text string) (err error) {
	if strings.Contains(text, "=") {
		h.task.Cost = 0
		if h.task.Costs, err = policy.ParseCosts(text); err != nil {
			return errors.New(strings.TrimPrefix(err.Error(), "throttle: costs: "))
		}
		return nil
	}
	h.task.Costs = nil
	switch h.task.Cost, err = strconv.ParseInt(text, 10, 64); {
	case errors.Is(err, strconv.ErrSyntax):
		return errors.New("not a whole number in plain digits")
	case h.task.Cost < 1:
		return errors.New("below 1")
	case h.task.Cost > queue.MaxCost:
		return fmt.Errorf("above %d", queue.MaxCost)
	}
	return nil
}

// explainFlags names the faults of a task by their flags.
func explainFlags(err error, try string) error {
	invalid, ok := errors.AsType[*queue.InvalidError](err)
	if !ok {
		return err
	}
	faults := make([]string, len(invalid.Faults))
	for i, fault := range invalid.Faults {
		faults[i] = flagOf(fault.Field) + ": " + fault.Reason
	}
	return &cli.Error{What: strings.Join(faults, "\n"), Try: try, Err: err}
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
