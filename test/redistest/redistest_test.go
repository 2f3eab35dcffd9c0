package redistest_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/test/redistest"
)

func TestMain(m *testing.M) { os.Exit(redistest.Main(m)) }

var ctx = context.Background()

func TestClientsShareOnePrivateServer(t *testing.T) {
	t.Parallel()
	prefix := redistest.Prefix(t)
	if err := redistest.Client(t).Set(ctx, prefix, "x", time.Minute).Err(); err != nil {
		t.Fatal(err)
	}
	if got := redistest.Client(t).Get(ctx, prefix).Val(); got != "x" {
		t.Errorf("second client reads %q, want what the first wrote", got)
	}
	if redistest.Addr() != redistest.Shared(t).Addr() || strings.HasSuffix(redistest.Addr(), ":6379") {
		t.Errorf("Addr() = %q", redistest.Addr())
	}
	save := redistest.Client(t).ConfigGet(ctx, "save").Val()["save"]
	aof := redistest.Client(t).ConfigGet(ctx, "appendonly").Val()["appendonly"]
	if save != "" || aof != "no" {
		t.Errorf("save %q, appendonly %q: want nothing kept on disk", save, aof)
	}
}

func TestPrefixIsUniqueAndPlain(t *testing.T) {
	t.Parallel()
	t.Run("Ünïcode/sub test {x}:*", func(t *testing.T) {
		seen := map[string]bool{}
		for range 100 {
			p := redistest.Prefix(t)
			if seen[p] {
				t.Fatalf("%q twice", p)
			}
			seen[p] = true
			if len(p) > 48 || strings.Trim(p, "abcdefghijklmnopqrstuvwxyz0123456789_") != "" {
				t.Fatalf("%q is not plain", p)
			}
		}
	})
}

func TestKill9AndRestartWithAOF(t *testing.T) {
	t.Parallel()
	s := redistest.NewServer(t, redistest.Options{Args: []string{"--appendonly", "yes", "--appendfsync", "always"}})
	c, addr := s.Client(t), s.Addr()
	if err := c.Set(ctx, "k", "kept", 0).Err(); err != nil {
		t.Fatal(err)
	}
	s.Kill9()
	if err := c.Ping(ctx).Err(); err == nil {
		t.Error("a killed server answers")
	}
	s.Kill9() // of nothing is harmless
	s.Restart(t)
	if got := c.Get(ctx, "k").Val(); got != "kept" || s.Addr() != addr {
		t.Errorf("after restart k = %q at %s, want kept at %s", got, s.Addr(), addr)
	}
	s.Stop(t)
	s.Restart(t)
	s.Restart(t)
	if got := c.Get(ctx, "k").Val(); got != "kept" {
		t.Errorf("after stop and two restarts k = %q", got)
	}
}

func TestOptionsReachTheServer(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := redistest.NewServer(t, redistest.Options{
		Password: "open sesame", Dir: dir, Args: []string{"--maxmemory", "8mb"},
	})
	if got := s.Client(t).ConfigGet(ctx, "maxmemory").Val()["maxmemory"]; got != strconv.Itoa(8<<20) {
		t.Errorf("maxmemory %q", got)
	}
	if _, err := os.Stat(filepath.Join(dir, "redis.log")); err != nil || s.Dir() != dir {
		t.Errorf("Dir() = %q, %v", s.Dir(), err)
	}
	bare := redis.NewClient(&redis.Options{Addr: s.Addr()})
	defer bare.Close()
	if err := bare.Ping(ctx).Err(); err == nil || !strings.Contains(err.Error(), "NOAUTH") {
		t.Errorf("without the password: %v", err)
	}
}

func TestClusterSpreadsSlotsAndRefusesCrossSlot(t *testing.T) {
	t.Parallel()
	c, prefix := redistest.Cluster(t), redistest.Prefix(t)
	if err := c.Set(ctx, prefix, "x", time.Minute).Err(); err != nil {
		t.Fatal(err)
	}
	err := c.Eval(ctx, "return 1", []string{prefix + "{a}", prefix + "{b}"}).Err()
	if err == nil || !strings.Contains(err.Error(), "CROSSSLOT") {
		t.Errorf("two slots in one script: %v, want CROSSSLOT", err)
	}
	if err := c.Eval(ctx, "return 1", []string{prefix + "1{a}", prefix + "2{a}"}).Err(); err != nil {
		t.Errorf("one slot: %v", err)
	}
}

func TestUserTouchesOnlyItsKeys(t *testing.T) {
	t.Parallel()
	prefix := redistest.Prefix(t)
	hostile := prefix + "{a b}\t*?[x]\\^-z\x00é"
	u := redistest.User(t, redistest.Literal(prefix, hostile))
	for _, key := range []string{prefix, hostile} {
		if err := u.Set(ctx, key, 1, time.Minute).Err(); err != nil {
			t.Errorf("own key %q: %v", key, err)
		}
	}
	for _, key := range []string{prefix + "x", strings.Replace(hostile, "*", "any", 1), "other"} {
		if err := u.Set(ctx, key, 1, time.Minute).Err(); err == nil || !strings.Contains(err.Error(), "NOPERM") {
			t.Errorf("foreign key %q: %v, want NOPERM", key, err)
		}
	}
	undeclared := u.Eval(ctx, "return redis.call('GET', ARGV[1])", []string{prefix}, prefix+"other").Err()
	if undeclared == nil {
		t.Error("a script read a key outside the patterns")
	}
	reader := redistest.User(t, []string{prefix + "*"}, "get", "+ping")
	if err := reader.Get(ctx, prefix).Err(); err != nil {
		t.Errorf("allowed command: %v", err)
	}
	if err := reader.Del(ctx, prefix).Err(); err == nil || !strings.Contains(err.Error(), "NOPERM") {
		t.Errorf("command not given: %v, want NOPERM", err)
	}
}

func TestCommandsCountsAlsoInsideScripts(t *testing.T) {
	t.Parallel()
	c := redistest.NewServer(t).Client(t)
	got := redistest.Commands(t, c, func() {
		c.Set(ctx, "a", 1, 0)
		c.Get(ctx, "a")
		c.Get(ctx, "a")
		c.Eval(ctx, "return redis.call('INCR', KEYS[1])", []string{"a"})
	})
	want := map[string]int{"set": 1, "get": 2, "eval": 1, "incr": 1}
	if !reflect.DeepEqual(got, want) || redistest.Total(got) != 5 {
		t.Errorf("counted %v, want %v", got, want)
	}
}

// A pipeline may be longer than what a pipe holds, and so may its replies.
func TestMiniredisTakesLongPipelines(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		_, c := redistest.Miniredis(t)
		text := strings.Repeat("x", 1000)
		pipe := c.Pipeline()
		for range 1000 {
			pipe.Echo(t.Context(), text)
		}
		replies, err := pipe.Exec(t.Context())
		if err != nil || len(replies) != 1000 {
			t.Fatalf("%d replies, %v", len(replies), err)
		}
		for _, r := range replies {
			if r.(*redis.StringCmd).Val() != text {
				t.Fatalf("got %v", r)
			}
		}
	})
}

// A reply that does not come is not waited for longer than the client's time.
func TestMiniredisKeepsDeadlines(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := miniredis.NewMiniRedis()
		t.Cleanup(m.Close)
		opts := redistest.MiniredisOptions(m)
		opts.ReadTimeout, opts.MaxRetries = time.Second, -1
		c := redis.NewClient(opts)
		defer c.Close()
		if err := c.Ping(t.Context()).Err(); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		err := c.Do(t.Context(), "BLPOP", "nothing", "10").Err()
		var timeout net.Error
		if took := time.Since(began); !errors.As(err, &timeout) || !timeout.Timeout() || took != time.Second {
			t.Errorf("%v after %s", err, took)
		}
	})
}

// A client that comes when the test is over, from what was begun in the background, does not start the
// server again, nor dial it while it is closed.
func TestClosedMiniredisIsNotDialled(t *testing.T) {
	t.Parallel()
	var late *redis.Client
	t.Run("over", func(t *testing.T) {
		m, _ := redistest.Miniredis(t)
		opts := redistest.MiniredisOptions(m)
		opts.DialerRetries, opts.MaxRetries = 1, -1
		late = redis.NewClient(opts)
	})
	defer late.Close()
	if err := late.Ping(ctx).Err(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("got %v", err)
	}
}

func TestMiniredisLivesInABubble(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m, c := redistest.Miniredis(t)
		if err := c.Set(ctx, "k", "x", time.Hour).Err(); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		redistest.WaitFor(t, "the key to expire by the bubble's clock", 2*time.Hour, func() bool { return !m.Exists("k") })
		if d := time.Since(start); d < time.Hour-time.Second || d > time.Hour+time.Second {
			t.Errorf("expired after %v, want 1h", d)
		}
	})
}

func TestWaitForFailsAtItsBound(t *testing.T) {
	t.Parallel()
	var failed fakeT
	want := redistest.Stretch(time.Minute)
	if want < time.Minute || redistest.Stretch(time.Second) != want || redistest.Stretch(2*time.Minute) != 2*want {
		t.Errorf("a minute becomes %v, a second %v, two minutes %v", want, redistest.Stretch(time.Second), redistest.Stretch(2*time.Minute))
	}
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		done := make(chan struct{})
		go func() {
			defer close(done)
			redistest.WaitFor(&failed, "godot", time.Minute, func() bool { return false })
		}()
		<-done
		if d := time.Since(start).Truncate(time.Second); d != want.Truncate(time.Second) { // it looks each two milliseconds
			t.Errorf("gave up after %v, want %v", d, want)
		}
	})
	if failed.said != fmt.Sprintf("waited in vain for godot, %v long", want) {
		t.Errorf("said %q", failed.said)
	}
}

// fakeT catches what a helper says when it fails.
type fakeT struct {
	testing.TB
	said string
}

func (f *fakeT) Helper() {}
func (f *fakeT) Fatalf(format string, args ...any) {
	f.said = strings.NewReplacer("%s", args[0].(string), "%v", args[1].(time.Duration).String()).Replace(format)
}

// The tests below run this test binary again, as a package whose circumstances differ.

const childEnv = "REDISTEST_CHILD"

func TestChild(t *testing.T) {
	if os.Getenv(childEnv) == "" {
		t.Skip("runs only as a child of the tests below")
	}
	pid := redistest.Client(t).Info(ctx, "server").Val()
	_, pid, _ = strings.Cut(pid, "process_id:")
	pid, _, _ = strings.Cut(pid, "\r")
	os.Stdout.WriteString("redis pid " + pid + "\n")
	select {} // until killed
}

// TestNoisyChild has a client say a little and then a lot, and fails if it is to.
func TestNoisyChild(t *testing.T) {
	if os.Getenv(childEnv) == "" {
		t.Skip("runs only as a child of the tests below")
	}
	for i := range 60 {
		c := redis.NewClient(&redis.Options{
			MaxRetries: -1, DialerRetries: 1,
			Dialer: func(context.Context, string, string) (net.Conn, error) { return nil, fmt.Errorf("no way %d", i) },
		})
		if err := c.Ping(ctx).Err(); err == nil {
			t.Error("a client without a way says it has one")
		}
		c.Close()
	}
	if os.Getenv(childEnv) == "fails" {
		t.Error("as it should")
	}
}

func child(t *testing.T, env ...string) *exec.Cmd {
	t.Helper()
	return childOf(t, "TestChild", env...)
}

func childOf(t *testing.T, test string, env ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^"+test+"$", "-test.timeout=1m")
	cmd.Env = append(append(os.Environ(), childEnv+"=1"), env...)
	return cmd
}

func TestMissingRedisFailsWithAHint(t *testing.T) {
	t.Parallel()
	out, err := child(t, "REDIS_SERVER=/nonexistent/redis-server").CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || !strings.Contains(string(out), "run make test, which installs it") ||
		!strings.Contains(string(out), "--- FAIL: TestChild") {
		t.Errorf("err %v, output:\n%s", err, out)
	}
}

// "What go-redis prints about its connections is printed at the end, and only if
// tests fail": the last of it.
func TestGoRedisIsHeardOnlyWhenTestsFail(t *testing.T) {
	t.Parallel()
	quiet, err := childOf(t, "TestNoisyChild").CombinedOutput()
	if err != nil || strings.Contains(string(quiet), "no way") {
		t.Errorf("of tests that pass: err %v, output:\n%s", err, quiet)
	}
	loud, err := childOf(t, "TestNoisyChild", childEnv+"=fails").CombinedOutput()
	said := string(loud)
	if err == nil || strings.Count(said, "no way") != 50 || strings.Contains(said, "no way 9\n") ||
		!strings.Contains(said, "no way 59\n") || !strings.Contains(said, "after 10 more lines") {
		t.Errorf("of tests that fail: err %v, output:\n%s", err, said)
	}
}

func TestServerDiesWithAKilledTestBinary(t *testing.T) {
	t.Parallel()
	if !diesWithParent {
		t.Skip("no parent-death signal here")
	}
	cmd := child(t)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 256)
	n, err := out.Read(buf)
	if err != nil {
		t.Fatal(err)
	}
	_, text, _ := strings.Cut(strings.TrimSpace(string(buf[:n])), "redis pid ")
	pid, err := strconv.Atoi(text)
	if err != nil {
		t.Fatalf("child said %q", buf[:n])
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	redistest.WaitFor(t, "redis-server to die with its parent", 2*time.Minute, func() bool {
		return gone(pid)
	})
}

// gone says whether the process ended; a zombie that nobody waits for has.
func gone(pid int) bool {
	if syscall.Kill(pid, 0) != nil {
		return true
	}
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	return err != nil || strings.Contains(string(stat), ") Z ")
}
