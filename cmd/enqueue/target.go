package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/cmd/internal/cli"
	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/limitsyaml"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/throttle/policystore"
	usages "github.com/headway-go/headway/throttle/usage"
)

// target is where tasks go and what they are checked against: the flags that
// both commands have.
type target struct {
	redis  string // the flag, later the URL
	limits string
	json   bool

	allowMethods []string
	maxTimeout   time.Duration // after which workers end a run

	app         string // that enqueues
	within      string // the scope that tasks are kept to
	maxPriority int    // of tasks there
}

func (t *target) register(fs *flag.FlagSet) {
	fs.StringVar(&t.redis, "redis", "", "")
	cli.FileVar(fs, &t.limits, "limits")
	fs.BoolVar(&t.json, "json", false, "")
	cli.AllowMethodFlag(fs, &t.allowMethods)
	fs.Func("app", "", func(name string) error {
		t.app = name
		return usages.CheckApp(name)
	})
	fs.Func("within", "", func(scope string) error {
		t.within = scope
		_, err := policy.ParseScope(scope)
		return err
	})
	fs.IntVar(&t.maxPriority, "max-priority", 0, "")
	fs.DurationVar(&t.maxTimeout, "max-timeout", cli.DefaultMaxTimeout, "")
}

// open connects to Redis and finds the policy. The caller closes the client. A
// limits file is read first, so that its faults are reported without a Redis.
func (c *command) open(ctx context.Context, t *target) (redis.UniversalClient, *queue.Client, error) {
	var pol *policy.Policy
	var err error
	if t.limits != "" {
		if pol, err = limitsyaml.Load(t.limits); err != nil {
			return nil, nil, explainLimits(err)
		}
	}
	t.redis = cmp.Or(t.redis, cli.EmbeddedURL)
	rdb, err := cli.OpenRedis(ctx, t.redis)
	if err != nil {
		return nil, nil, err
	}
	if pol == nil {
		if pol, err = c.published(ctx, rdb, t.redis); err != nil {
			return nil, nil, errors.Join(err, rdb.Close())
		}
	}
	c.policy = pol
	cfg := t.clientConfig()
	cfg.OnEnqueue = c.onEnqueue()
	client, err := newClient(rdb, pol, cfg)
	if err != nil {
		return nil, nil, errors.Join(err, rdb.Close())
	}
	return rdb, client, nil
}

// newClient returns a client that gives tasks their turns, in the lines that the
// workers keep. Without a policy it has none to give.
func newClient(rdb redis.UniversalClient, policy *policy.Policy, cfg queue.ClientConfig) (*queue.Client, error) {
	if policy == nil {
		return queue.NewClient(rdb, cfg), nil
	}
	var err error
	if cfg.Limiter, err = throttle.New(rdb, policy, throttle.Config{}); err != nil {
		return nil, err
	}
	return queue.NewClient(rdb, cfg), nil
}

// clientConfig is what the flags say of tasks.
func (t *target) clientConfig() queue.ClientConfig {
	cfg := queue.ClientConfig{AllowMethods: t.allowMethods, App: t.app, Inspect: true}
	if t.within != "" {
		cfg.Within = &queue.Within{Scope: t.within, MaxPriority: t.maxPriority}
	}
	return cfg
}

// published returns the policy that workers have published. Where there is none
// it says so, once.
func (c *command) published(ctx context.Context, rdb redis.UniversalClient, url string) (*policy.Policy, error) {
	policy, err := queue.PublishedPolicy(ctx, rdb)
	switch {
	case errors.As(err, new(*policystore.DamagedError)):
		return nil, &cli.Error{
			What: "the limits in Redis at " + cli.RedisName(url) + " cannot be read:\n" + policyFaults(err),
			Try:  "-limits FILE, or restart the worker with the same version as this program",
			Err:  err,
		}
	case err != nil:
		return nil, cli.Explain(err, url)
	case policy == nil:
		c.typed.Fail(c.stderr, c.name, cli.Errorf("-limits FILE to check them here",
			"no worker has published limits yet: scopes and costs stay unchecked until a worker takes the tasks"))
	}
	return policy, nil
}

func policyFaults(err error) string {
	if pe, ok := errors.AsType[*policy.Error](err); ok {
		return pe.Error()
	}
	return err.Error()
}

// explainLimits says why a limits file was refused: its faults one below the
// other, each with its line.
func explainLimits(err error) error {
	if errors.As(err, new(*policy.Error)) {
		return &cli.Error{What: policyFaults(err), Err: err}
	}
	return &cli.Error{What: "cannot read the limits: " + err.Error(), Try: "-limits FILE, or no -limits to use the limits that workers publish", Err: err}
}

// argument returns the one argument that follows the flags.
func argument(fs *flag.FlagSet, what, example string) (string, error) {
	if fs.NArg() == 0 {
		return "", cli.Errorf(example, "no %s given", what)
	}
	if fs.NArg() > 1 {
		return "", tooMany(fs.Args()[1:], what, example)
	}
	return fs.Arg(0), nil
}

func tooMany(extra []string, what, example string) error {
	for _, text := range extra {
		if len(text) > 1 && text[0] == '-' {
			return cli.Errorf(example, "%s comes after the %s; put flags before it", text, what)
		}
	}
	return cli.Errorf(example, "one %s at a time, and %q is a second one", what, extra[0])
}
