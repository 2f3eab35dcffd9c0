package riverlimit_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"

	"github.com/headway-go/headway/test/redistest"
)

func TestMain(m *testing.M) {
	code := redistest.Main(m)
	if server.stop != nil {
		server.stop()
	}
	os.Exit(code)
}

var bound = redistest.Stretch(2 * time.Minute)

// server is the PostgreSQL of this package's tests: on a free port of the loopback, in a temporary directory. It starts with the
// first test that asks for it.
var server struct {
	once      sync.Once
	url       string
	stop      func()
	err       error
	databases atomic.Int64
}

// pool returns a client of a database of its own, with River's tables.
func pool(t testing.TB) *pgxpool.Pool {
	t.Helper()
	name := fmt.Sprint("test", server.databases.Add(1))
	server.once.Do(func() { server.err = startPostgres() })
	redistest.Must(t, server.err)
	connect := func(database string) *pgxpool.Pool {
		p, err := pgxpool.New(t.Context(), server.url+database+"?pool_max_conns=20")
		redistest.Must(t, err)
		t.Cleanup(p.Close)
		return p
	}
	_, err := connect("postgres").Exec(t.Context(), "CREATE DATABASE "+name)
	redistest.Must(t, err)
	db := connect(name)
	migrator, err := rivermigrate.New(riverpgxv5.New(db), nil)
	redistest.Must(t, err)
	_, err = migrator.Migrate(t.Context(), rivermigrate.DirectionUp, nil)
	redistest.Must(t, err)
	return db
}

// program finds a program of PostgreSQL, which Debian keeps off the PATH.
func program(name string) (string, error) {
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/" + name)
	if path, err := exec.LookPath(name); err == nil {
		found = append(found, path)
	}
	if len(found) == 0 {
		return "", errors.New("there is no " + name + "; try: test/setup.sh -postgres")
	}
	slices.Sort(found)
	return found[len(found)-1], nil
}

func startPostgres() error {
	initdb, err1 := program("initdb")
	postgres, err2 := program("postgres")
	dir, err3 := os.MkdirTemp("", "riverlimit-")
	attr, err4 := attributes(dir)
	port, err5 := freePort()
	if err := errors.Join(err1, err2, err3, err4, err5); err != nil {
		return err
	}
	data := filepath.Join(dir, "data")
	run := exec.Command(initdb, "-D", data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-locale", "--no-sync")
	run.Dir, run.SysProcAttr = dir, attr
	if out, err := run.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	said, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		return err
	}
	serve := exec.Command(postgres, "-D", data, "-p", strconv.Itoa(port), "-k", dir, "-c", "listen_addresses=127.0.0.1",
		"-c", "fsync=off", "-c", "max_connections=200")
	serve.Dir, serve.SysProcAttr, serve.Stdout, serve.Stderr = dir, attr, said, said
	if err := serve.Start(); err != nil {
		return err
	}
	server.stop = func() {
		_ = serve.Process.Signal(syscall.SIGQUIT) // at once: nothing is kept
		_ = serve.Wait()
		_ = said.Close()
		_ = os.RemoveAll(dir)
	}
	server.url = fmt.Sprintf("postgres://postgres@127.0.0.1:%d/", port)
	return untilReady(filepath.Join(dir, "log"))
}

func untilReady(log string) error {
	ctx, cancel := context.WithTimeout(context.Background(), bound)
	defer cancel()
	for {
		db, err := pgxpool.New(ctx, server.url+"postgres")
		if err == nil {
			err = db.Ping(ctx)
			db.Close()
		}
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			text, _ := os.ReadFile(log)
			return fmt.Errorf("%w: %s", err, text)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// attributes has PostgreSQL run as a user that owns dir: it refuses to run as root. It ends with the tests, also if they are killed.
func attributes(dir string) (*syscall.SysProcAttr, error) {
	attr := childAttr()
	if os.Getuid() != 0 {
		return attr, nil
	}
	of, err := user.Lookup("postgres")
	if err != nil {
		return nil, err
	}
	uid, err1 := strconv.Atoi(of.Uid)
	gid, err2 := strconv.Atoi(of.Gid)
	attr.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
	return attr, errors.Join(err1, err2, os.Chown(dir, uid, gid))
}

func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	return l.Addr().(*net.TCPAddr).Port, l.Close() //nolint:forcetypeassert // it listens on TCP
}
