package throttle

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/headway-go/headway/lua"
	"github.com/headway-go/headway/test/redistest"
)

// accessRule is what docs/operations.md and the package's own documentation say
// that a user needs.
const accessRule = "+evalsha +eval +time +get +set +pttl +pexpire " +
	"+zadd +zcard +zcount +zrangebyscore +zrem +zremrangebyscore +zrevrangebyscore +zscore"

// everyCall has a limiter do all that it can, on hostile names, and returns the
// first error.
func everyCall(t *testing.T, rdb redis.UniversalClient, prefix string) error {
	t.Helper()
	rules := []Rule{
		{Name: "s {*", Algorithm: SlidingWindow, Limit: 4, Per: time.Hour}, {Name: "b", Algorithm: TokenBucket, Limit: 4, Per: sec, Burst: 4},
		{Name: "f", Algorithm: FixedWindow, Limit: 4, Per: time.Hour}, {Name: "c", Algorithm: Concurrency, Limit: 2},
	}
	policy, err := NewPolicy(UnmatchedDeny, map[string]Node{"p {*}": {Rules: rules, Scopes: map[string]Node{"*": {Rules: rules}}}})
	if err != nil {
		t.Fatal(err)
	}
	l, err := New(rdb, policy, Config{Prefix: prefix, Timeout: 5 * sec})
	if err != nil {
		t.Fatal(err)
	}
	first := Request{Scope: "p {*}/a b*", ID: "one *"}
	d, err := l.Decide(t.Context(), first)
	if err != nil {
		return err
	}
	if !d.Allowed {
		t.Fatalf("got %+v", d)
	}
	ctx, lease := l.Hold(t.Context(), d.Grant)
	lease.beat(defaultLease)
	lost := context.Cause(ctx)
	_, peek := l.Peek(t.Context(), first)
	_, again := l.Decide(t.Context(), first)
	second, err := l.Decide(t.Context(), Request{Scope: first.Scope, Ahead: MaxAhead})
	_, denied := l.Decide(t.Context(), Request{Scope: first.Scope})
	back := l.GiveBack(t.Context(), second.Grant)
	release := lease.Release(t.Context())
	_, join := l.join(t.Context(), "member", sec)
	_, leave := l.join(t.Context(), "member", 0)
	return errors.Join(lost, peek, again, err, denied, back, release, join, leave)
}

// "the smallest ACL rule that works is documented and tested": it works, and
// without any of its commands something does not.
func TestSmallestAccess(t *testing.T) {
	t.Parallel()
	commands := strings.Fields(accessRule)
	prefix := redistest.Prefix(t)
	if err := everyCall(t, redistest.User(t, []string{prefix + ":*"}, commands...), prefix); err != nil {
		t.Fatalf("with all of the rule: %v", err)
	}
	for i, command := range commands {
		if command == "+eval" {
			continue // needed only where the scripts are not known, which TestFirstAccess sees to
		}
		less := slices.Delete(slices.Clone(commands), i, i+1)
		prefix := redistest.Prefix(t)
		if err := everyCall(t, redistest.User(t, []string{prefix + ":*"}, less...), prefix); err == nil {
			t.Errorf("all works without %s", command)
		}
	}
	if err := everyCall(t, redistest.User(t, []string{"other:*"}, commands...), prefix); err == nil {
		t.Error("it writes keys outside of its prefix")
	}
}

// +eval is what teaches a server the scripts.
func TestFirstAccess(t *testing.T) {
	t.Parallel()
	server := redistest.NewServer(t)
	if err := everyCall(t, server.User(t, []string{"hw:*"}, strings.Fields(strings.Replace(accessRule, "+eval ", "", 1))...), "hw"); err == nil {
		t.Error("all works without +eval")
	}
	if err := everyCall(t, server.User(t, []string{"hw:*"}, strings.Fields(accessRule)...), "hw"); err != nil {
		t.Error(err)
	}
}

// The rule stands in the documentation as it is tested.
func TestAccessIsDocumented(t *testing.T) {
	t.Parallel()
	for _, file := range []string{"doc.go", "../docs/operations.md"} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		plain := strings.Join(strings.Fields(strings.ReplaceAll(string(text), "//", "")), " ")
		if !strings.Contains(plain, accessRule) {
			t.Errorf("%s does not have the rule\n%s", file, accessRule)
		}
	}
}

// recorder keeps what is sent.
type recorder struct{ calls [][]any }

func (r *recorder) DialHook(next redis.DialHook) redis.DialHook { return next }

func (r *recorder) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if cmd.Name() == "evalsha" {
			r.calls = append(r.calls, cmd.Args())
		}
		return next(ctx, cmd)
	}
}

func (r *recorder) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// sources are all scripts, by hash.
func sources() map[string]string {
	all := map[string]string{}
	for _, s := range lua.All() {
		for set := range 1 << len(lua.Kinds) {
			kinds := ""
			for i, k := range lua.Kinds {
				if set&(1<<i) != 0 {
					kinds += string(k)
				}
			}
			all[s.For(kinds).SHA] = s.For(kinds).Source
		}
	}
	return all
}

// "Every key is declared: the tests run each script as a Redis user whose ACL
// patterns are exactly the call's keys", and on a node of a cluster that looks.
func TestEveryKeyIsDeclared(t *testing.T) {
	t.Parallel()
	recorded := &recorder{}
	rdb := clientOf(t, optionsOf(t))
	rdb.AddHook(recorded)
	if err := everyCall(t, rdb, redistest.Prefix(t)); err != nil {
		t.Fatal(err)
	}
	known, seen := sources(), map[string]bool{}
	cluster := redistest.Cluster(t)
	for _, call := range recorded.calls {
		source := known[call[1].(string)] //nolint:forcetypeassert // see newCall
		n := call[2].(int)                //nolint:forcetypeassert // as above
		keys := make([]string, n)
		for i := range keys {
			keys[i] = call[3+i].(string) //nolint:forcetypeassert // as above
		}
		seen[source] = true
		user := redistest.User(t, redistest.Literal(keys...))
		if err := user.Eval(t.Context(), source, keys, call[3+n:]...).Err(); err != nil {
			t.Errorf("as a user of exactly %q: %v", keys, err)
		}
		if err := cluster.Eval(t.Context(), "#!lua\n"+source, keys, call[3+n:]...).Err(); err != nil {
			t.Errorf("on a cluster, with %q: %v", keys, err)
		}
	}
	if len(seen) != len(lua.All()) {
		t.Errorf("%d scripts were run, there are %d", len(seen), len(lua.All()))
	}
}

// "Works on a redis.UniversalClient: single, Sentinel, Cluster, TLS".
func TestClients(t *testing.T) {
	t.Parallel()
	server := redistest.NewServer(t)
	clients := map[string]redis.UniversalClient{
		"single":   server.Client(t),
		"Cluster":  redistest.Cluster(t),
		"Sentinel": sentinel(t, server),
		"TLS":      encrypted(t, server),
		"Ring": redis.NewRing(&redis.RingOptions{
			Addrs: map[string]string{"a": server.Addr(), "b": redistest.NewServer(t).Addr()},
		}),
	}
	for name, rdb := range clients {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			t.Cleanup(func() { _ = rdb.Close() })
			if err := everyCall(t, rdb, redistest.Prefix(t)); err != nil {
				t.Error(err)
			}
			policy := policyOf(t, window10(), runs10())
			l, err := New(rdb, policy, Config{Prefix: redistest.Prefix(t)})
			if err != nil {
				t.Fatal(err)
			}
			together(t, l, 5, nil, func(int) error { return allowed(l, "p/x") })
		})
	}
}

// sentinel returns a client that asks a sentinel for the master's address.
func sentinel(t *testing.T, server *redistest.Server) redis.UniversalClient {
	t.Helper()
	host, port, err := net.SplitHostPort(server.Addr())
	if err != nil {
		t.Fatal(err)
	}
	address := fmt.Sprintf("*2\r\n$%d\r\n%s\r\n$%d\r\n%s\r\n", len(host), host, len(port), port)
	listener := listen(t, func(conn net.Conn) {
		serve(conn, func(command []string) string {
			switch {
			case command[0] == "hello":
				return "-ERR unknown command\r\n"
			case command[0] == "sentinel" && strings.EqualFold(command[1], "get-master-addr-by-name"):
				return address
			case command[0] == "sentinel":
				return "*0\r\n"
			case command[0] == "subscribe":
				return subscribed(command[1:])
			}
			return "+OK\r\n"
		})
	})
	return redis.NewUniversalClient(&redis.UniversalOptions{Addrs: []string{listener}, MasterName: "main", DisableIdentity: true})
}

func subscribed(channels []string) string {
	var b strings.Builder
	for i, c := range channels {
		b.WriteString("*3\r\n$9\r\nsubscribe\r\n$" + strconv.Itoa(len(c)) + "\r\n" + c + "\r\n:" + strconv.Itoa(i+1) + "\r\n")
	}
	return b.String()
}

// encrypted returns a client that reaches the server by TLS.
func encrypted(t *testing.T, server *redistest.Server) redis.UniversalClient {
	t.Helper()
	cert := certificate(t)
	plain := listen(t, func(conn net.Conn) {
		in := tls.Server(conn, &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12})
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
	return redis.NewUniversalClient(&redis.UniversalOptions{
		Addrs: []string{plain}, TLSConfig: trusting(t, cert), DisableIdentity: true,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	})
}

// listen accepts connections until the test ends, each with its own handler.
func listen(t *testing.T, handle func(net.Conn)) (address string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
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
