package main

import (
	"cmp"
	"context"
	"errors"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"

	"github.com/headway-go/headway/cmd/internal/cli"
	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/queue/httpsyntax"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/limitsyaml"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/throttle/policystore"
	"github.com/headway-go/headway/throttle/usage"
	"github.com/headway-go/headway/worker/control"
)

const defaultRemember = 24 * time.Hour

// target has the flags that http and batch share: where tasks go, and what they are checked against. open sets the second part.
type target struct {
	redis       string
	limits      string // file
	json        bool
	methods     []string
	maxTimeout  time.Duration // after which workers end a run
	app         string        // that enqueues
	within      string        // the scope that tasks are kept to
	maxPriority int           // of tasks there
	remember    time.Duration
	getenv      func(string) string

	rdb    redis.UniversalClient
	policy *policy.Policy // nil for none
	client *queue.Client
}

func (t *target) flags(c *cobra.Command) {
	cli.RedisFlag(c, &t.redis)
	fs := c.Flags()
	fs.StringVar(&t.limits, "limits", "", "check scopes and costs against this limits.yaml `FILE`, and give tasks their turns by it. Default: the limits that workers publish in Redis")
	fs.BoolVar(&t.json, "json", false, "print objects of JSON, one a line; docs/json.md has their fields")
	methodsFlag(c, &t.methods)
	fs.StringVar(&t.app, "app", "", "`NAME` of the application that enqueues, for worker inspect usage")
	fs.StringVar(&t.within, "within", "", "refuse tasks that do not spend from `SCOPE` or below it; use it for tasks from others. Ids belong to SCOPE: inv-1 becomes SCOPE//inv-1")
	fs.IntVar(&t.maxPriority, "max-priority", 0, "the highest priority within that scope, `N`")
	cli.DurationVar(fs, &t.maxTimeout, "max-timeout", cli.DefaultMaxTimeout, "the workers' -max-timeout, after which they end a run: warn of a task with a longer timeout")
	cli.DurationVar(fs, &t.remember, "remember", defaultRemember, "how long an id stays taken after its task succeeded")
}

func methodsFlag(c *cobra.Command, methods *[]string) {
	c.Flags().StringArrayVar(methods, "allow-method", nil, "another `METHOD` of http requests, such as PROPFIND, that the workers allow by their own -allow-method. May be repeated")
}

// check refuses values of flags.
func (t *target) check(c *cobra.Command) error {
	faults := []error{checkMethods(t.methods)}
	if err := usage.CheckApp(t.app); err != nil && (t.app != "" || c.Flags().Changed("app")) {
		faults = append(faults, cli.Errorf("-app billing", "-app: %s", strings.TrimPrefix(err.Error(), "usage: ")))
	}
	if _, err := policy.ParseScope(t.within); err != nil && (t.within != "" || c.Flags().Changed("within")) {
		faults = append(faults, cli.Errorf("-within payments/acme", "-within: %v", err))
	}
	if t.remember < 0 {
		faults = append(faults, cli.Errorf("-remember 24h", "-remember %s is below 0", t.remember))
	}
	return cli.Usage(errors.Join(faults...))
}

func checkMethods(methods []string) error {
	for _, method := range methods {
		if reason := httpsyntax.MethodFault(method); reason != "" {
			return cli.Errorf("-allow-method PROPFIND", "-allow-method %q: %s", method, reason)
		}
	}
	return nil
}

// open connects to Redis and finds the policy. A limits file is read first, so that its faults are reported
// without a Redis. The caller calls close.
func (t *target) open(c *cobra.Command) (err error) {
	if t.limits != "" {
		if t.policy, err = limitsyaml.Load(t.limits); err != nil {
			return explainLimits(err)
		}
	}
	t.redis = cmp.Or(t.redis, cli.EmbeddedURL)
	if t.rdb, err = cli.OpenRedis(c.Context(), t.redis); err != nil {
		return interrupted(c, err, "; nothing was enqueued", "")
	}
	if t.policy == nil {
		if t.policy, err = t.published(c); err != nil {
			return errors.Join(err, t.rdb.Close())
		}
	}
	cfg := queue.ClientConfig{AllowMethods: t.methods, App: t.app, Inspect: true, OnEnqueue: t.onEnqueue(c)}
	if t.within != "" {
		cfg.Within = &queue.Within{Scope: t.within, MaxPriority: t.maxPriority}
	}
	if t.policy != nil { // without a policy there are no turns to give
		if cfg.Limiter, err = throttle.New(t.rdb, t.policy, throttle.Config{TierOf: policystore.New(t.rdb, policystore.Config{}).TierOf}); err != nil {
			return errors.Join(err, t.rdb.Close())
		}
	}
	t.client = queue.NewClient(t.rdb, cfg)
	return nil
}

func (t *target) close() { _ = t.rdb.Close() }

// published returns the policy that workers have published. Where there is none it says so.
func (t *target) published(c *cobra.Command) (*policy.Policy, error) {
	policy, err := queue.PublishedPolicy(c.Context(), t.rdb)
	switch {
	case errors.As(err, new(*policystore.DamagedError)):
		return nil, &cli.Error{
			What: "the limits in Redis at " + cli.RedisName(t.redis) + " cannot be read:\n" + control.Plain(err),
			Try:  "-limits FILE, or restart the worker with the same version as this program",
			Err:  err,
		}
	case err != nil:
		return nil, cli.Explain(err, t.redis)
	case policy == nil:
		cli.Fail(c.ErrOrStderr(), c.CommandPath(), cli.Errorf("-limits FILE to check them here",
			"no worker has published limits yet: scopes and costs stay unchecked until a worker takes the tasks"))
	}
	return policy, nil
}

// explainLimits says why a limits file was refused: each fault on a line of its own.
func explainLimits(err error) error {
	if faults, is := errors.AsType[*policy.Error](err); is {
		return &cli.Error{What: faults.Error(), Err: err}
	}
	return &cli.Error{What: "cannot read the limits: " + err.Error(), Try: "-limits FILE, or no -limits to use the limits that workers publish", Err: err}
}

// interrupted returns the error of a command that a signal ended. Other errors stay as they are.
func interrupted(c *cobra.Command, err error, what, try string) error {
	if c.Context().Err() == nil {
		return err
	}
	return cli.Errorf(try, "%v%s", context.Cause(c.Context()), what)
}

// The variables that pass a trace context to a child process: https://opentelemetry.io/docs/specs/otel/context/env-carriers/
const (
	parentVariable = "TRACEPARENT"
	stateVariable  = "TRACESTATE"
)

// onEnqueue returns a queue.ClientConfig.OnEnqueue that adds tasks to the trace in the environment, nil if there is none. It
// warns of a malformed context, which is ignored. By the W3C rule a state needs its parent, and a malformed state is dropped alone.
func (t *target) onEnqueue(c *cobra.Command) func(context.Context, queue.Task) (map[string]string, func(queue.Result)) {
	parent, state := t.getenv(parentVariable), t.getenv(stateVariable)
	switch {
	case parent == "":
		return nil
	case !httpsyntax.ValidTraceparent(parent):
		cli.Fail(c.ErrOrStderr(), c.CommandPath(), cli.Errorf("unset it, or pass a context such as 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01 on",
			"the variable %s is no W3C traceparent; tasks are enqueued without a trace", parentVariable))
		return nil
	}
	headers := map[string]string{httpsyntax.Traceparent: parent}
	if !httpsyntax.ValidTracestate(state) {
		cli.Fail(c.ErrOrStderr(), c.CommandPath(), cli.Errorf("unset it, or pass a list such as vendor=value on",
			"the variable %s is no W3C tracestate; tasks are enqueued with their %s alone", stateVariable, parentVariable))
	} else if state != "" {
		headers[httpsyntax.Tracestate] = state
	}
	return func(context.Context, queue.Task) (map[string]string, func(queue.Result)) { return headers, nil }
}
