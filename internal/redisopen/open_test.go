package redisopen

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2/server"

	"github.com/headway-go/headway/internal/diag"
	"github.com/headway-go/headway/test/redistest"
)

var must = redistest.Must

func TestMain(m *testing.M) {
	RouteLog(nil)
	os.Exit(redistest.Main(m))
}

func TestOpen(t *testing.T) {
	t.Parallel()
	secret := redistest.NewServer(t, redistest.Options{Password: "geheim/:@?#"})
	const escaped = "geheim%2F%3A%40%3F%23"
	socket := filepath.Join(t.TempDir(), "r.sock")
	redistest.NewServer(t, redistest.Options{Args: []string{"--unixsocket", socket}})
	host, port, _ := net.SplitHostPort(redistest.Addr())
	sentinel := fakeRedis(t, func(command []string) string {
		if strings.EqualFold(command[0], "SENTINEL") && command[1] == "get-master-addr-by-name" {
			return "*2\r\n" + bulk(host) + bulk(port)
		}
		return answers(map[string]string{"SENTINEL": "*0\r\n", "PING": "+PONG\r\n", "SUBSCRIBE": "wait"})(command)
	})
	cluster := redistest.Cluster(t)
	node := cluster.Options().Addrs[0]

	for name, url := range map[string]string{
		"database":        "redis://" + redistest.Addr() + "/3",
		"options":         "redis://" + redistest.Addr() + "?pool_size=7&dial_timeout=3s",
		"password":        "redis://:" + escaped + "@" + secret.Addr(),
		"user":            "redis://default:" + escaped + "@" + secret.Addr() + "/0",
		"unix":            "unix://" + socket + "?db=1",
		"redis-socket":    "redis-socket://" + socket,
		"sentinel":        "redis-sentinel://" + sentinel + "/2?master=main",
		"second sentinel": "redis-sentinel://127.0.0.1:1," + sentinel + "?master=main",
		"go-redis's word": "redis-sentinel://" + sentinel + "?master_name=main",
		"cluster":         "redis+cluster://" + node + "?addr=127.0.0.1:1",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rdb, err := Open(t.Context(), url)
			must(t, err)
			t.Cleanup(func() { _ = rdb.Close() })
			if n := rdb.Exists(t.Context(), "hw:probe").Val(); n != 0 {
				t.Error("the check left a key behind")
			}
			expired, cancel := context.WithDeadline(t.Context(), time.Unix(0, 0))
			defer cancel()
			if err := rdb.Ping(expired).Err(); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("a command past its deadline: %v", err)
			}
		})
	}
}

// The error for a Redis that cannot be used says what is wrong and what to try, without the password.
func TestOpenFaults(t *testing.T) {
	t.Parallel()
	locked := redistest.NewServer(t, redistest.Options{Password: "geheim"}).Addr()
	open := redistest.Addr()
	full := redistest.NewServer(t, redistest.Options{Args: []string{"--maxmemory", "1", "--maxmemory-policy", "noeviction"}}).Addr()
	replica := redistest.NewServer(t, redistest.Options{Args: []string{"--replicaof", "127.0.0.1", "1"}}).Addr()
	node := redistest.Cluster(t).Options().Addrs[0]
	pingless := redistest.User(t, []string{"*"}, "+@all", "-ping").Options()
	fake := func(m map[string]string) string { return fakeRedis(t, answers(m)) }
	pong := "+PONG\r\n"

	for name, tt := range map[string]struct{ url, what, try string }{
		"down":         {"redis://127.0.0.1:1", "nothing listens at 127.0.0.1:1", "start it (redis-server)"},
		"no such host": {"redis://no-such-host.invalid", "no address is known for the host of no-such-host.invalid:6379", "spelling"},
		"no socket":    {"unix:///nowhere/r.sock", "there is no socket /nowhere/r.sock", "check the path"},
		"no password":  {"redis://" + locked, "needs a password", "REDIS_URL"},
		"user only":    {"redis://geheim@" + locked, "needs a password", "with a colon"},
		"wrong":        {"redis://:geheim2@" + locked, "refuses the user name or password", "percent-encode"},
		"wrong user":   {"redis://geheim:geheim@" + locked, "refuses the user name or password", "percent-encode"},
		"not wanted":   {"redis://:geheim@" + fake(map[string]string{"AUTH": "-ERR AUTH <password> called without any password configured for the default user.\r\n"}), "has no password, and the URL gives one", "leave it out"},
		"may not ping": {"redis://" + pingless.Username + ":" + pingless.Password + "@" + open, "refuses its user", "ACL"},
		"replica":      {"redis://" + replica, "is a read-only replica", "master"},
		"full":         {"redis://" + full, "is full", "maxmemory"},
		"database":     {"redis://" + open + "/99", "does not have the database number", "smaller"},
		"node":         {"redis://" + node + "/1", "is a node of a cluster", "redis+cluster://"},
		"no cluster":   {"redis+cluster://" + open, "is a single server", "redis://"},
		"no TLS":       {"rediss://" + open + "?dial_timeout=100ms&max_retries=-1", "did not answer in time", "redis:// instead"},
		"old":          {"redis://" + fake(map[string]string{"PING": pong, "INFO": bulk("redis_version:5.0.14\r\n")}), "is version 5.0.14, and 6.2 is the oldest", "Valkey"},
		"loading":      {"redis://" + fake(map[string]string{"PING": "-LOADING Redis is loading the dataset in memory\r\n"}), "is still loading", "again in a moment"},
		"moved":        {"redis://" + fake(map[string]string{"PING": pong, "INFO": bulk(""), "SET": "-MOVED 1 10.0.0.1:6379\r\n"}), "is a node of a cluster", "redis+cluster://"},
		"cannot save":  {"redis://" + fake(map[string]string{"PING": pong, "INFO": bulk(""), "SET": "-MISCONF Redis is configured to save RDB snapshots\r\n"}), "cannot save to disk", "disk"},
		"crowded":      {"redis://" + fake(map[string]string{"HELLO": "-ERR max number of clients reached\r\n", "PING": "-ERR max number of clients reached\r\n"}), "has no connection left", "maxclients"},
		"unknown":      {"redis://" + fake(map[string]string{"PING": "-WEIRD words\r\n"}), "answered: WEIRD words", ""},
		"hangs up":     {"redis://" + fakeRedis(t, func([]string) string { return "" }), "closed the connection", "rediss://"},
		"web server":   {"redis://" + fakeRedis(t, func([]string) string { return "HTTP/1.1 400 Bad Request\r\n\r\n" }), "does not answer like Redis", "check PORT"},
		"mute":         {"redis://" + fakeRedis(t, func([]string) string { return "wait" }) + "?read_timeout=100ms&max_retries=-1", "did not answer in time", "firewall"},
		"no sentinel":  {"redis-sentinel://127.0.0.1:1/?master=main", "none of the sentinels can be reached", "26379"},
		"strange master": {"redis-sentinel://" + fake(map[string]string{"SENTINEL": "*-1\r\n", "PING": pong}) + "/?master=main",
			`the sentinels do not know master "main"`, "sentinel monitor"},
		"locked sentinel": {"redis-sentinel://" + fake(map[string]string{"SENTINEL": "-NOAUTH Authentication required.\r\n"}) + "/?master=main",
			"the sentinels refuse", "before @"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rdb, err := Open(t.Context(), tt.url)
			if err == nil {
				_ = rdb.Close()
				t.Fatal("no error")
			}
			fault, is := errors.AsType[*diag.Error](err)
			if !is || !strings.Contains(fault.What, tt.what) || !strings.Contains(fault.Try, tt.try) || strings.Contains(err.Error(), "geheim") {
				t.Errorf("got %v, want %q and %q", err, tt.what, tt.try)
			}
		})
	}
}

func TestOpenInterrupted(t *testing.T) {
	t.Parallel()
	asked := make(chan struct{}, 16)
	url := "redis://" + fakeRedis(t, func([]string) string { asked <- struct{}{}; return "wait" })
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-asked; cancel() }()
	if _, err := Open(ctx, url); err != context.Canceled { //nolint:errorlint // exactly this one
		t.Errorf("got %v, want context.Canceled", err)
	}
}

func TestExplain(t *testing.T) {
	t.Parallel()
	full := redistest.NewServer(t)
	rdb := full.Client(t)
	must(t, rdb.ConfigSet(t.Context(), "maxmemory", "1").Err())
	limited := redistest.User(t, []string{"*"}, "+@all", "-get")
	for want, err := range map[string]error{
		"Redis at " + full.Addr() + " is full": rdb.Set(t.Context(), "k", "v", 0).Err(),
		" is full":                             rdb.Eval(t.Context(), "return redis.call('SET', KEYS[1], 'v')", []string{"k"}).Err(),
		"refuses its user":                     limited.Eval(t.Context(), "return redis.call('GET', KEYS[1])", []string{"k"}).Err(),
	} {
		if err := Explain(err, "redis://:geheim@"+full.Addr()); !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	refused := &net.OpError{Op: "dial", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
	got := Explain(refused, "embedded").Error() // not dialled: a worker may run on this machine
	if !strings.Contains(got, "nothing listens at 127.0.0.1:6390") || !strings.Contains(got, "start a worker first") {
		t.Errorf("got %v", got)
	}
	for _, err := range []error{context.Canceled, nil} {
		if got := Explain(err, "embedded"); got != err { //nolint:errorlint // exactly this one
			t.Errorf("got %v", got)
		}
	}
}

// fakeRedis is a server that answers each command as reply says, in the wire format. It stands for servers that are hard to come
// by: old, loading, or not Redis at all.
func fakeRedis(t *testing.T, reply func(command []string) string) string {
	t.Helper()
	s, err := server.NewServer("127.0.0.1:0")
	must(t, err)
	t.Cleanup(s.Close)
	s.SetPreHook(func(c *server.Peer, name string, args ...string) bool {
		switch answer := reply(append([]string{name}, args...)); answer {
		case "": // hang up
			c.Close()
		case "wait":
		default:
			c.WriteRaw(answer)
			c.Flush()
		}
		return true
	})
	return s.Addr().String()
}

// answers replies to a command by its first word; others get an error, as HELLO does from a server that has never heard of it.
func answers(m map[string]string) func([]string) string {
	return func(command []string) string {
		if a, ok := m[strings.ToUpper(command[0])]; ok {
			return a
		}
		return "-ERR unknown command\r\n"
	}
}

func bulk(s string) string { return "$" + strconv.Itoa(len(s)) + "\r\n" + s + "\r\n" }
