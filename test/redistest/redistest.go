// Package redistest gives tests a real Redis of their own.
//
// A package that tests against Redis writes
//
//	func TestMain(m *testing.M) { os.Exit(redistest.Main(m)) }
//
// and then asks for Client and Prefix in each test. One private redis-server runs per test package: on a free port of the
// loopback, in a temporary directory, with nothing kept on disk. It starts with the first test that asks for it and ends with the
// package; on Linux it ends even when the test binary is killed. Tests of one package share it, each under the names its Prefix
// gives, so nothing needs flushing and every test may run in parallel. A test that needs a server to itself (to kill it, to count
// its commands, to give it other settings) takes NewServer, and no TestMain for it.
//
// Where redis-server is not installed the tests fail and say how to get it; they are never skipped. The environment variable
// REDIS_SERVER names the program to run instead of the redis-server on the PATH.
//
// The package imports testing and may be imported by tests only.
package redistest

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// shared is what the tests of one package have in common.
var shared struct {
	main      atomic.Bool // Main runs: somebody will stop what is started
	plain     lazy
	cluster   lazy
	prefixes  atomic.Int64
	passwords atomic.Int64
}

// errNoMain tells the caller of Client that nobody would stop the server.
var errNoMain = errors.New("redistest: Main is not running, so nothing would stop the server; " +
	"add to the package's tests: func TestMain(m *testing.M) { os.Exit(redistest.Main(m)) }")

// lazy is a server that starts when it is first asked for.
type lazy struct {
	once   sync.Once
	server *Server
	err    error
}

// get starts the server at most once; a failure is told to everyone who asks.
func (l *lazy) get(opts Options) (*Server, error) {
	l.once.Do(func() {
		if !shared.main.Load() {
			l.err = errNoMain
			return
		}
		l.server, l.err = start(opts)
	})
	return l.server, l.err
}

// Main runs the tests of a package and returns their exit code, having stopped the servers that they shared. It starts none
// itself. What go-redis prints about its connections is printed at the end, and only if tests fail.
func Main(m *testing.M) int {
	shared.main.Store(true)
	said := &clientLog{}
	redis.SetLogger(said)
	code := m.Run()
	if code != 0 {
		said.print(os.Stderr)
	}
	for _, l := range []*lazy{&shared.plain, &shared.cluster} {
		l.once.Do(func() { l.err = errNoMain })
		if l.server == nil {
			continue
		}
		if err := l.server.close(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = max(code, 1)
		}
	}
	return code
}

// AtOnce has so many tests run at once, unless -parallel says otherwise. It is for a
// TestMain whose tests wait more than they work.
func AtOnce(tests int) {
	flag.Parse()
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "test.parallel" })
	if !given {
		_ = flag.Set("test.parallel", fmt.Sprint(tests))
	}
}

// Shared returns the package's own server. Do not stop it: other tests use it.
func Shared(t testing.TB) *Server {
	t.Helper()
	s, err := shared.plain.get(Options{})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// Addr returns host:port of the package's own server. It takes no testing.T so
// that Example functions can call it, and panics where Client would fail.
func Addr() string {
	s, err := shared.plain.get(Options{})
	if err != nil {
		panic(err)
	}
	return s.Addr()
}

// Client returns a client of the package's own server, closed when t ends. Every test shares the database: name keys by Prefix.
func Client(t testing.TB) *redis.Client {
	t.Helper()
	return Shared(t).Client(t)
}

// Cluster returns a client of a Redis Cluster of one node that owns all slots, closed when t ends. The package's tests share the
// node, which starts with the first call and takes about two seconds to call itself a cluster.
func Cluster(t testing.TB) *redis.ClusterClient {
	t.Helper()
	s, err := shared.cluster.get(Options{Cluster: true})
	if err != nil {
		t.Fatal(err)
	}
	return closing(t, redis.NewClusterClient(&redis.ClusterOptions{
		Addrs: []string{s.Addr()}, DisableIdentity: true,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	}))
}

// User makes a user on the package's own server and returns a client logged in as it; see Server.User.
func User(t testing.TB, patterns []string, commands ...string) *redis.Client {
	t.Helper()
	return Shared(t).User(t, patterns, commands...)
}

// Prefix returns a name that no other call in this package returns, such as "t7_testallow_burst". It holds lower-case letters,
// digits and "_" only, so that it can begin a key, a scope, a queue name or an ACL pattern alike, and is at most 48 bytes long.
func Prefix(t testing.TB) string {
	t.Helper()
	name := strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9':
			return r
		case r >= 'A' && r <= 'Z':
			return r + 'a' - 'A'
		}
		return '_'
	}, t.Name())
	prefix := fmt.Sprintf("t%d_%s", shared.prefixes.Add(1), name)
	return prefix[:min(len(prefix), 48)]
}
