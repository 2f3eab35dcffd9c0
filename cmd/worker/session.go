package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"

	"github.com/headway-go/headway/cmd/internal/cli"
	"github.com/headway-go/headway/internal/diag"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/limitsfile"
	"github.com/headway-go/headway/throttle/limitsyaml"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/throttle/policystore"
	"github.com/headway-go/headway/worker/control"
)

// session is one run of a subcommand that asks Redis and prints results.
type session struct {
	url, as string
	json    bool

	rdb  redis.UniversalClient
	out  cli.Output
	errs io.Writer
}

// flags adds -redis and -json to a command and to all below it.
func (s *session) flags(c *cobra.Command) {
	cli.RedisFlag(c, &s.url)
	c.PersistentFlags().BoolVar(&s.json, "json", false, "print objects of JSON, one a line")
}

// offline returns a RunE that asks no Redis.
func (s *session) offline(do func(words []string) error) func(*cobra.Command, []string) error {
	return func(c *cobra.Command, words []string) error {
		s.out, s.errs = cli.Output{W: c.OutOrStdout(), JSON: s.json}, c.ErrOrStderr()
		return do(words)
	}
}

// online returns a RunE that connects to Redis, and puts errors into words.
func (s *session) online(do func(ctx context.Context, words []string) error) func(*cobra.Command, []string) error {
	return func(c *cobra.Command, words []string) error {
		ctx := c.Context()
		return s.offline(func(words []string) (err error) {
			s.url = cmp.Or(s.url, cli.EmbeddedURL)
			if s.rdb, err = cli.OpenRedis(ctx, s.url); err != nil {
				return err
			}
			defer func() { _ = s.rdb.Close() }() // nothing is in flight any more
			return explain(ctx, do(ctx, words), s.url)
		})(c, words)
	}
}

func (s *session) store() *policystore.Store { return policystore.New(s.rdb, policystore.Config{}) }

// service returns a Service over the limits in Redis, or over empty ones if there are none that can be read.
func (s *session) service(ctx context.Context) (*control.Service, error) {
	p, err := s.store().Now(ctx)
	if errors.Is(err, policystore.ErrNone) || errors.As(err, new(*policystore.DamagedError)) {
		p, err = policy.New("", nil)
	}
	if err != nil {
		return nil, err
	}
	return s.serviceOver(p)
}

func (s *session) serviceOver(p *policy.Policy) (*control.Service, error) {
	limiter, err := throttle.New(s.rdb, p, throttle.Config{TierOf: s.store().TierOf})
	if err != nil {
		return nil, err
	}
	return control.New(control.Config{Redis: s.rdb, Limiter: limiter, Store: s.store()}), nil
}

// actor returns the actor at the command line, an admin: the ACL of Redis decides what they may do.
func (s *session) actor() control.Actor {
	return control.Actor{Name: cmp.Or(s.as, "cli"), Role: control.RoleAdmin, Via: "cli"}
}

// asFlag adds -as, whose default is the name of the user.
func (s *session) asFlag(c *cobra.Command, getenv func(string) string) {
	name := cmp.Or(strings.TrimSpace(getenv("USER")), strings.TrimSpace(getenv("USERNAME")))
	if u, err := user.Current(); name == "" && err == nil {
		name = u.Username
	}
	c.Flags().StringVar(&s.as, "as", cmp.Or(name, "unknown"), "author `NAME`, for the history. It is a label: the history has the Redis user besides")
}

// explain puts an error into words, with what to do about it. An *cli.Error stays as it is.
func explain(ctx context.Context, err error, url string) error {
	switch {
	case err == nil, errors.As(err, new(*cli.Error)), errors.Is(err, cli.ErrPrinted), ctx.Err() != nil:
		return err
	case errors.Is(err, policystore.ErrNone):
		return &cli.Error{What: "there are no limits at " + cli.RedisName(url) + ": none were set, and no worker has published any in the last 24 hours",
			Try: "worker -limits limits.yaml, or worker limits import -replace limits.yaml", Err: err}
	case errors.Is(err, policystore.ErrNotPermitted):
		return &cli.Error{What: "the user of Redis at " + cli.RedisName(url) + " may not change limits; nothing was changed",
			Try: "a -redis URL with a user that may; docs/operations.md has its ACL rule", Err: err}
	case errors.Is(err, policy.ErrNoBreaker):
		return &cli.Error{What: plainly(err), Try: "worker limits pause; or give it a breaker: worker limits assign payments/acme breaker='{failures: 50%}'", Err: err}
	case errors.Is(err, policystore.ErrUnchanged):
		return &cli.Error{What: plainly(err), Err: err}
	}
	if none, is := errors.AsType[*control.NoTaskError](err); is {
		return noTask(none)
	}
	if unknown, is := errors.AsType[*control.UnknownScopeError](err); is {
		return &cli.Error{What: plainly(err), Try: "worker limits list, or -force if " + cli.Quote(unknown.Name) + " is meant", Err: err}
	}
	for _, known := range []struct {
		as  any
		try string
	}{
		{new(*policystore.ConflictError), "worker limits history, then make your change to the newest version"},
		{new(*policystore.VersionError), "worker limits history"},
		{new(*policystore.DamagedError), "the newest version of this program; DEL hw:limits removes every live change"},
		{new(*policystore.RefusedError), ""}, {new(*policy.Error), ""}, {new(*policy.ScopeError), ""},
		{new(*policy.UnmatchedError), ""}, {new(*policy.CostError), ""}, {new(*control.TaskChangeError), ""},
	} {
		if errors.As(err, known.as) {
			return &cli.Error{What: plainly(err), Try: known.try, Err: err}
		}
	}
	return cli.Explain(err, url)
}

// plainly is an error without the name of the package that it comes from.
func plainly(err error) string { return control.Plain(err) }

func noTask(none *control.NoTaskError) error {
	const few = 10
	where := "there is no queue yet"
	if len(none.Queues) > 0 {
		where = "queues: " + cli.QuoteList(none.Queues[:min(few, len(none.Queues))])
	}
	if len(none.Queues) > few {
		where += ", …"
	}
	return cli.Errorf("an id as enqueue -json prints it; a task that succeeded is gone, unless enqueue batch remembers it",
		"there is no task %s (%s)", cli.Quote(none.ID), where)
}

// readLimits reads a limits file, "-" for standard input. Every fault in it is one line of the error.
func readLimits(path string) (*policy.Policy, error) {
	if path != "-" {
		p, err := limitsyaml.Load(path)
		if err != nil {
			return nil, limitsUnread(path, err)
		}
		return p, nil
	}
	text, err := io.ReadAll(os.Stdin)
	if err != nil {
		return nil, fmt.Errorf("cannot read standard input: %w", err)
	}
	p, err := limitsyaml.Parse("standard input", text)
	if err != nil {
		return nil, limitsUnread("standard input", err)
	}
	return p, nil
}

func limitsUnread(path string, err error) error {
	switch {
	case errors.Is(err, limitsfile.ErrBusy), errors.Is(err, context.Canceled):
		return err
	case errors.As(err, new(*policy.Error)):
		return &cli.Error{What: err.Error(), Try: "correct these lines of " + path, Err: err}
	case errors.Is(err, fs.ErrNotExist):
		return &cli.Error{What: "there is no limits file " + path, Try: fileLike(path), Err: err}
	case errors.Is(err, fs.ErrPermission):
		return &cli.Error{What: "no permission to read the limits file " + path, Try: "chmod +r " + path, Err: err}
	}
	return &cli.Error{What: "cannot read the limits file " + path + ": " + err.Error(), Err: err}
}

// fileLike returns what to try instead of a file that does not exist: the file beside it with the nearest name.
func fileLike(path string) string {
	dir, name := filepath.Split(path)
	var names []string
	entries, _ := os.ReadDir(cmp.Or(dir, ".")) // none can be read, none is near
	for _, e := range entries {
		if !e.IsDir() {
			names = append(names, e.Name())
		}
	}
	if near := diag.Nearest(name, names); near != "" {
		return dir + near
	}
	if i := slices.IndexFunc(names, func(n string) bool { return strings.HasPrefix(n, name) || strings.HasPrefix(name, n) }); i >= 0 {
		return dir + names[i]
	}
	return "ls " + cmp.Or(dir, ".") + ", or docs/get-started.md for a first limits file"
}

// stamp writes a time as RFC 3339 does, with milliseconds; none is "".
func stamp(at time.Time) string { return control.At(at).String() }

// author names the author of a change: by is a label, and user is the Redis user.
func author(by, user string) string {
	return asLabel(by) + " (user " + asLabel(cmp.Or(user, "unknown")) + ")"
}

// asLabel is cli.Quote. It also quotes a name that looks like the rest of an author.
func asLabel(name string) string {
	if text := cli.Quote(name); text != name || !strings.ContainsAny(name, `()"#`) {
		return text
	}
	return strconv.Quote(name)
}
