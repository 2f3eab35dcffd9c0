package throttle

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/headway-go/headway/lua"
	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/throttle/upstream"
	"github.com/headway-go/headway/throttle/wallclock"
)

// documentedAccess is the command of docs/operations.md that makes a user, word
// by word, and the commands among them that the user may run.
func documentedAccess(t *testing.T) (words, commands []string) {
	t.Helper()
	text, err := os.ReadFile("../docs/operations.md")
	noError(t, err)
	_, rule, found := strings.Cut(string(text), "\nACL SETUSER ")
	rule, _, closed := strings.Cut(rule, "```")
	if !found || !closed {
		t.Fatal("docs/operations.md has no ACL SETUSER")
	}
	words = strings.Fields("ACL SETUSER " + rule)
	for _, w := range words {
		if strings.HasPrefix(w, "+") {
			commands = append(commands, w)
		}
	}
	return words, commands
}

// What clients of several servers need besides, for themselves. A Cluster client
// that may not run COMMAND works, but asks for it with every call.
const (
	clusterAccess = "+cluster|slots"
	ringAccess    = "+ping"
)

// everyRule has a rule of each kind. None of their windows ends during a test.
var everyRule = []policy.Rule{
	{Name: "s {*", Algorithm: policy.SlidingWindow, Limit: 2, Per: policy.MaxTime}, {Name: "b", Algorithm: policy.TokenBucket, Limit: 2, Per: policy.MaxTime, Burst: 2},
	{Name: "f", Algorithm: policy.FixedWindow, Limit: 2, Per: policy.MaxTime}, {Name: "c", Algorithm: policy.Concurrency, Limit: 2},
	{Name: "k", Algorithm: policy.Calendar, Limit: 2, Resets: wallclock.MustParse("0 0 29 2 *", "UTC")},
}

const hostileProvider = "p {*}"

// everyCall has a limiter do all that it can, on hostile names, and returns every error of a script; what takes the place of
// the server may be hooked in. A script that fails halfway has charged some rules and not others: only where none has are
// the answers looked at.
func everyCall(t *testing.T, rdb redis.UniversalClient, prefix string, rules []policy.Rule, instead ...redis.Hook) error {
	t.Helper()
	pol := limitsOf(t, map[string]policy.ScopeConfig{hostileProvider: {Rules: rules, Scopes: map[string]policy.ScopeConfig{"*": {Rules: rules}}}})
	var mu sync.Mutex
	var errs []error
	failed := func() error {
		mu.Lock()
		defer mu.Unlock()
		return errors.Join(errs...)
	}
	rdb.AddHook(hook(func(_ context.Context, cmds []redis.Cmder, send func() error) error {
		err := send()
		if err != nil && len(cmds) == 1 && runsScript(cmds[0]) && !unknownScript(err) {
			mu.Lock()
			defer mu.Unlock()
			errs = append(errs, err)
		}
		return err
	}))
	for _, hook := range instead {
		rdb.AddHook(hook)
	}
	l := newLimiter(t, rdb, pol, Config{Prefix: prefix, Timeout: 5 * sec})
	decide := func(id string, ahead time.Duration, want bool) Decision {
		t.Helper()
		d, err := l.Decide(t.Context(), Request{Scope: hostileProvider + "/a b*", ID: id, MaxDelay: ahead})
		if err == nil && d.Allowed != want && failed() == nil {
			t.Errorf("attempt %q: %+v", id, d)
		}
		return d
	}
	d := decide("one *", 0, true)
	_, lease := l.Lease(t.Context(), d.Grant)
	if lease.limiter != nil {
		lease.beat(30 * time.Second) // which keeps its error to itself
	}
	_, _ = l.Peek(t.Context(), Request{Scope: hostileProvider + "/a b*"})
	_, _ = l.Settle(t.Context(), d.Grant, policy.Costs{policy.Requests: 1})
	_ = l.SaveGrant(t.Context(), d.Grant, "one *", time.Hour)
	_, _ = l.LoadGrant(t.Context(), hostileProvider+"/a b*", "one *")
	decide("one *", 0, true)
	second := decide("two", MaxDelayLimit, true)
	decide("three", MaxDelayLimit, false)
	_ = l.Refund(t.Context(), second.Grant)
	_ = l.Refund(t.Context(), second.Grant)
	last := decide("four", 0, true)
	_ = lease.Release(t.Context())
	everyTurn(t, l, d.Grant, last.Grant)
	_, _ = l.join(t.Context(), "member", sec)
	_, _ = l.join(t.Context(), "member", 0)
	return failed()
}

// everyTurn has one wait for a turn, and be released again and again, as if it did not come.
func everyTurn(t *testing.T, l *Limiter, full ...Grant) {
	t.Helper()
	scope := hostileProvider + "/a b*"
	one := []WaiterRef{{Scope: scope, ID: "one *"}}
	_, _ = l.Waitlist().RequeueFront(t.Context(), Request{Scope: scope, Turn: Turn{WaiterID: "one *"}})
	_, _ = l.Inspect(t.Context(), hostileProvider)
	for _, g := range full {
		_ = l.Refund(t.Context(), g)
	}
	for _, req := range []DispatchRequest{{}, {NotFound: one}, {Claimed: one}} {
		req.Provider, req.Max = hostileProvider, 10
		_, _ = l.Waitlist().Dispatch(t.Context(), req)
	}
	_, _ = l.Decide(t.Context(), Request{Scope: scope, Turn: Turn{WaiterID: "one *"}})
	_, _ = l.Waitlist().Join(t.Context(), []Waiter{{Scope: scope, ID: "two"}}, 0, 0)
	_, _ = l.Waitlist().Dispatch(t.Context(), DispatchRequest{Provider: hostileProvider, Max: 10, Deleted: one, Withdrawn: one, CheckAll: true})
	_, _ = l.Waitlist().Join(t.Context(), []Waiter{{Scope: scope, ID: "g/three"}}, 0, 0)
	_, _ = l.Waitlist().Dispatch(t.Context(), DispatchRequest{Provider: hostileProvider, Max: 10, StalledGroups: []string{"g/"}, CheckAll: true})
	_, _ = l.Waitlist().InspectWaiter(t.Context(), Waiter{Scope: scope, ID: "g/three"})
	back, _ := l.Waitlist().Parked(t.Context(), hostileProvider, 0, 10)
	_, _ = l.Waitlist().Dispatch(t.Context(), DispatchRequest{Provider: hostileProvider, Max: 10, Unpark: back})
	if p, err := l.scopes.of(scope); err == nil {
		l.repaired(t.Context(), hostileProvider, []string{p.scope.String()}, errDamaged)
	}
	_, _ = l.Waitlist().ActiveProviders(t.Context(), time.Time{})
	_, _ = l.Report(t.Context(), scope, upstream.Hint{Limited: true})
	_, _ = l.Peek(t.Context(), Request{Scope: scope})
	_ = l.ResetUpstream(t.Context(), scope)
	_, _ = l.Reset(t.Context(), scope, "")
}

// "the smallest ACL rule that works is documented and tested": it works, and without any of its commands something does not.
func TestSmallestAccess(t *testing.T) {
	t.Parallel()
	_, commands := documentedAccess(t)
	prefix := redistest.Prefix(t)
	if err := everyCall(t, redistest.User(t, []string{prefix + ":*"}, commands...), prefix, everyRule); err != nil {
		t.Fatalf("with all of the rule: %v", err)
	}
	for i, command := range commands {
		if command == "+eval" {
			continue // needed only where the scripts are not known, which TestFirstAccess sees to
		}
		less := slices.Delete(slices.Clone(commands), i, i+1)
		prefix := redistest.Prefix(t)
		err := everyCall(t, redistest.User(t, []string{prefix + ":*"}, less...), prefix, everyRule)
		if err == nil || !slices.ContainsFunc([]string{"NOPERM", "can't run this command", "ACL failure in script"}, func(words string) bool {
			return strings.Contains(err.Error(), words) // of different versions
		}) {
			t.Errorf("without %s: %v", command, err)
		}
	}
	if err := everyCall(t, redistest.User(t, []string{"other:*"}, commands...), prefix, everyRule); err == nil {
		t.Error("it writes keys outside of its prefix")
	}
}

// "+eval may be taken away once every server knows the scripts": it is what
// teaches them, and "without it an unknown script is an outage".
func TestFirstAccess(t *testing.T) {
	t.Parallel()
	server := redistest.NewServer(t)
	_, all := documentedAccess(t)
	less := slices.DeleteFunc(slices.Clone(all), func(c string) bool { return c == "+eval" })
	l := newLimiter(t, server.User(t, []string{"hw:*"}, less...), policyOf(t, window10()), Config{})
	if err := allowed(l, "p/x"); !errors.Is(err, ErrUnavailable) {
		t.Errorf("without +eval: %v", err)
	}
	for i, commands := range [][]string{all, less} {
		prefix := fmt.Sprint("hw", i)
		if err := everyCall(t, server.User(t, []string{prefix + ":*"}, commands...), prefix, everyRule); err != nil {
			t.Errorf("with %q: %v", commands, err)
		}
	}
}

// The rule works as docs/operations.md has it, and the package's own documentation has the same.
func TestAccessAsDocumented(t *testing.T) {
	t.Parallel()
	words, commands := documentedAccess(t)
	text, err := os.ReadFile("doc.go")
	noError(t, err)
	plain := strings.Join(strings.Fields(strings.ReplaceAll(string(text), "//", "")), " ")
	_, rest, found := strings.Cut(plain, " ~hw:{* ~hw:turns ~hw:members ~hw:processes %R~hw:limits* "+strings.Join(commands, " ")+" ")
	if !found || strings.HasPrefix(rest, "+") {
		t.Errorf("doc.go does not have the rule\n%s", commands)
	}

	server := redistest.NewServer(t)
	command := make([]any, len(words))
	for i, w := range words {
		command[i] = strings.Replace(w, ">PASSWORD", ">secret", 1)
	}
	if err := server.Client(t).Do(t.Context(), command...).Err(); err != nil {
		t.Fatalf("%q: %v", command, err)
	}
	opts := *server.Client(t).Options()
	opts.Username, opts.Password = words[2], "secret"
	rdb := clientOf(t, &opts)
	if err := everyCall(t, rdb, defaultPrefix, everyRule); err != nil {
		t.Error(err)
	}
	for name, err := range map[string]error{
		"a key of others":    rdb.Get(t.Context(), "another").Err(),
		"other keys of ours": rdb.Set(t.Context(), "hw:another", "", 0).Err(),
		"to change limits":   rdb.HSet(t.Context(), "hw:limits", "version", "1").Err(),
		"to end limits":      rdb.PExpire(t.Context(), "hw:limits", time.Millisecond).Err(),
	} {
		if !redis.HasErrorPrefix(err, "NOPERM") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := rdb.HGetAll(t.Context(), "hw:limits").Err(); err != nil {
		t.Errorf("to read limits: %v", err)
	}
}

// A Cluster client and a Ring need a command more, to learn of their servers.
func TestAccessOfSeveralServers(t *testing.T) {
	t.Parallel()
	_, commands := documentedAccess(t)
	more := func(command string) []string { return append(slices.Clone(commands), command) }
	t.Run("Cluster", func(t *testing.T) {
		t.Parallel()
		server := redistest.NewServer(t, redistest.Options{Cluster: true})
		ask := func(prefix string, commands []string) error {
			user := server.User(t, []string{prefix + ":*"}, commands...).Options()
			opts := server.Cluster(t).Options()
			opts.Username, opts.Password = user.Username, user.Password
			rdb := redis.NewClusterClient(opts)
			defer rdb.Close()
			l := newLimiter(t, rdb, policyOf(t, window10()), Config{Prefix: prefix})
			if err := allowed(l, "p/x"); err != nil {
				return err
			}
			return everyCall(t, rdb, prefix, everyRule)
		}
		if err := ask("more", more(clusterAccess)); err != nil {
			t.Errorf("with %s: %v", clusterAccess, err)
		}
		if err := ask("less", commands); !errors.Is(err, ErrUnavailable) {
			t.Errorf("without %s: %v", clusterAccess, err)
		}
	})
	t.Run("Ring", func(t *testing.T) {
		t.Parallel()
		server := redistest.NewServer(t)
		ring := func(prefix string, commands []string) *redis.Ring {
			user := server.User(t, []string{prefix + ":*"}, commands...).Options()
			rdb := redis.NewRing(&redis.RingOptions{
				Addrs: map[string]string{"a": user.Addr}, Username: user.Username, Password: user.Password,
				DisableIdentity: true, HeartbeatFrequency: 10 * ms,
			})
			t.Cleanup(func() { _ = rdb.Close() })
			return rdb
		}
		if err := everyCall(t, ring("more", more(ringAccess)), "more", everyRule); err != nil {
			t.Errorf("with %s: %v", ringAccess, err)
		}
		l := newLimiter(t, ring("less", commands), policyOf(t, window10()), Config{Prefix: "less"})
		redistest.WaitFor(t, "a ring to miss "+ringAccess, bound, func() bool { return errors.Is(allowed(l, "p/x"), ErrUnavailable) })
	})
}

// declared is a hook that has scripts run elsewhere, each by its text and with the keys that it declares.
type declared struct {
	run func(ctx context.Context, keys []string, cmd redis.Cmder) error

	mu   sync.Mutex
	seen map[string]bool // the names of the scripts
}

// elsewhere sends the scripts of a pipeline each by itself.
func (d *declared) elsewhere(ctx context.Context, cmds []redis.Cmder, send func() error) error {
	var faults []error
	for _, cmd := range cmds {
		switch cmd.Name() {
		case "evalsha":
			cmd.SetErr(reply("NOSCRIPT send its text"))
		case "eval":
			args := cmd.Args()
			name, _, _ := strings.Cut(strings.TrimPrefix(fmt.Sprint(args[1]), "-- "), ":")
			d.mu.Lock()
			d.seen[name] = true
			d.mu.Unlock()
			var keys []string
			for _, key := range args[3 : 3+args[2].(int)] { //nolint:forcetypeassert // see call.text
				keys = append(keys, fmt.Sprint(key))
			}
			_ = d.run(ctx, keys, cmd)
		default:
			return send()
		}
		faults = append(faults, cmd.Err())
	}
	if len(faults) == 1 {
		return faults[0]
	}
	return errors.Join(faults...)
}

// "Every key is declared: the tests run each script as a Redis user whose ACL patterns are exactly the call's keys", and on
// a node of a cluster that looks: all that a limiter does, with rules of all kinds and of each alone.
func TestEveryKeyIsDeclared(t *testing.T) {
	t.Parallel()
	policies := map[string][]policy.Rule{"all kinds": everyRule}
	for _, r := range everyRule {
		policies[string(r.Algorithm)] = []policy.Rule{r}
	}
	cluster := redistest.Cluster(t)
	ways := map[string]func(ctx context.Context, keys []string, cmd redis.Cmder) error{
		"as a user of these keys alone": func(ctx context.Context, keys []string, cmd redis.Cmder) error {
			return redistest.User(t, redistest.Literal(keys...)).Process(ctx, cmd)
		},
		"on a cluster": func(ctx context.Context, _ []string, cmd redis.Cmder) error {
			text := &cmd.Args()[1]
			*text = fmt.Sprint("#!lua\n", *text) // whereupon it looks which keys are declared
			return cluster.Process(ctx, cmd)
		},
	}
	for way, run := range ways {
		for name, rules := range policies {
			t.Run(way+", "+name, func(t *testing.T) {
				t.Parallel()
				d := &declared{run: run, seen: map[string]bool{}}
				if err := everyCall(t, clientOf(t, optionsOf(t)), redistest.Prefix(t), rules, hook(d.elsewhere)); err != nil {
					t.Error(err)
				}
				for _, script := range lua.All() {
					if script == lua.DecideMany {
						continue // a batch, of which each limiter builds the keys itself
					}
					leases := script == lua.Renew || script == lua.Release
					if script == lua.ReleaseTasks {
						continue // package worker's
					}
					counted := slices.ContainsFunc(rules, func(r policy.Rule) bool { return r.Algorithm != policy.Concurrency })
					if (script == lua.Settle || script == lua.Reset) && !counted {
						continue // places are not settled, and not reset
					}
					if hasLeases := slices.ContainsFunc(rules, func(r policy.Rule) bool { return r.Algorithm == policy.Concurrency }); d.seen[script.Name] != (!leases || hasLeases) {
						t.Errorf("%s was run: %t", script.Name, d.seen[script.Name])
					}
				}
			})
		}
	}
}

// "Works on a redis.UniversalClient: single, Sentinel, Cluster, TLS".
func TestClients(t *testing.T) {
	t.Parallel()
	server := redistest.NewServer(t)
	clients := map[string]redis.UniversalClient{
		"single":   server.Client(t),
		"Cluster":  redistest.Cluster(t),
		"Sentinel": redistest.NewSentinel(t).Client(t),
		"TLS":      encrypted(t, server),
		"Ring": redis.NewRing(&redis.RingOptions{
			Addrs: map[string]string{"a": server.Addr(), "b": redistest.NewServer(t).Addr()},
		}),
	}
	for name, rdb := range clients {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			t.Cleanup(func() { _ = rdb.Close() })
			if err := everyCall(t, rdb, redistest.Prefix(t), everyRule); err != nil {
				t.Error(err)
			}
			policy := policyOf(t, window10(), runs10())
			l := newLimiter(t, rdb, policy, Config{Prefix: redistest.Prefix(t)})
			together(t, l, 5, nil, func(int) error { return allowed(l, "p/x") })
		})
	}
}

// encrypted returns a client that reaches the server by TLS.
func encrypted(t *testing.T, server *redistest.Server) redis.UniversalClient {
	t.Helper()
	pair := httptest.NewTLSServer(nil) // of which the certificate is wanted
	t.Cleanup(pair.Close)
	plain := listen(t, func(conn net.Conn) {
		in := tls.Server(conn, &tls.Config{Certificates: pair.TLS.Certificates, MinVersion: tls.VersionTLS12})
		defer in.Close()
		out, err := net.Dial("tcp", server.Addr())
		if err != nil {
			return
		}
		defer out.Close()
		go func() {
			_, _ = io.Copy(out, in)
			_ = out.Close()
		}()
		_, _ = io.Copy(in, out)
	})
	roots := x509.NewCertPool()
	roots.AddCert(pair.Certificate())
	return redis.NewUniversalClient(&redis.UniversalOptions{
		Addrs: []string{plain}, TLSConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}, DisableIdentity: true,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	})
}

// listen accepts connections until the test ends, each with its own handler.
func listen(t *testing.T, handle func(net.Conn)) (address string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	noError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go handle(conn)
		}
	}()
	return l.Addr().String()
}
