package redistest_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headway-go/headway/test/redistest"
)

func TestMain(m *testing.M) { os.Exit(redistest.Main(m)) }

func TestUserTouchesOnlyItsKeys(t *testing.T) {
	t.Parallel()
	prefix := redistest.Prefix(t)
	hostile := prefix + "{a b}\t*?[x]\\^-z\x00é"
	u := redistest.User(t, redistest.Literal(prefix, hostile))
	for _, key := range []string{prefix, hostile} {
		if err := u.Set(t.Context(), key, 1, time.Minute).Err(); err != nil {
			t.Errorf("own key %q: %v", key, err)
		}
	}
	for _, key := range []string{prefix + "x", strings.Replace(hostile, "*", "any", 1), "other"} {
		if err := u.Set(t.Context(), key, 1, time.Minute).Err(); err == nil || !strings.Contains(err.Error(), "NOPERM") {
			t.Errorf("foreign key %q: %v, want NOPERM", key, err)
		}
	}
	undeclared := u.Eval(t.Context(), "return redis.call('GET', ARGV[1])", []string{prefix}, prefix+"other").Err()
	if undeclared == nil {
		t.Error("a script read a key outside the patterns")
	}
	reader := redistest.User(t, []string{prefix + "*"}, "get", "+ping")
	if err := reader.Get(t.Context(), prefix).Err(); err != nil {
		t.Errorf("allowed command: %v", err)
	}
	if err := reader.Del(t.Context(), prefix).Err(); err == nil || !strings.Contains(err.Error(), "NOPERM") {
		t.Errorf("command not given: %v, want NOPERM", err)
	}
}

func TestWaitForFailsAtItsBound(t *testing.T) {
	t.Parallel()
	var failed fakeT
	want := redistest.Stretch(time.Minute)
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

// childEnv is set for this test binary where the tests below run it again, as a package whose circumstances differ.
const childEnv = "REDISTEST_CHILD"

func TestChild(t *testing.T) {
	if os.Getenv(childEnv) == "" {
		t.Skip("runs only as a child of the tests below")
	}
	pid := redistest.Client(t).Info(t.Context(), "server").Val()
	_, pid, _ = strings.Cut(pid, "process_id:")
	pid, _, _ = strings.Cut(pid, "\r")
	os.Stdout.WriteString("redis pid " + pid + "\n")
	select {} // until killed
}

func child(t *testing.T, env ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^TestChild$", "-test.timeout=1m")
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

func TestServerDiesWithAKilledTestBinary(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("no parent-death signal here")
	}
	cmd := child(t)
	out, err := cmd.StdoutPipe()
	redistest.Must(t, err)
	redistest.Must(t, cmd.Start())
	buf := make([]byte, 256)
	n, err := out.Read(buf)
	redistest.Must(t, err)
	_, text, _ := strings.Cut(strings.TrimSpace(string(buf[:n])), "redis pid ")
	pid, err := strconv.Atoi(text)
	if err != nil {
		t.Fatalf("child said %q", buf[:n])
	}
	redistest.Must(t, cmd.Process.Kill())
	_ = cmd.Wait()
	redistest.WaitFor(t, "redis-server to die with its parent", 2*time.Minute, func() bool { return gone(pid) })
}

// gone says whether the process ended; a zombie that nobody waits for has.
func gone(pid int) bool {
	if syscall.Kill(pid, 0) != nil {
		return true
	}
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	return err != nil || strings.Contains(string(stat), ") Z ")
}
