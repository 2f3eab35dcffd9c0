package main

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/user"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"golang.org/x/term"

	"github.com/headway-go/headway/cmd/internal/cli"
	"github.com/headway-go/headway/queue/schedule"
	"github.com/headway-go/headway/worker"
	"github.com/headway-go/headway/worker/page"
)

// pageUsage is what "worker page -h" prints; testdata/page.golden holds the same text.
const pageUsage = `Usage: worker page [flags]
       worker page hash        make what stands in a users file for a password
       worker page token       make a token, and what stands there for it

Serves a page that shows who waits, for what and until when, and from which
limits are changed. It works with any number of workers, and needs none on this
machine. Redis is read once a second for all who look, and not while nobody does.

On this machine everybody is an admin. Another address than loopback needs -users
or -proxy.

  hash      read a password, without showing it, and print its bcrypt hash
  token     print a new token, and its hash

Flags:
  -redis URL        where tasks and limits are. Default: REDIS_URL from the
                    environment, else the embedded server of a worker on
                    127.0.0.1:6390
  -listen ADDR      where to serve. Default: :9091, on 127.0.0.1
  -prefix PATH      the path below which the page is, such as /limits, for a proxy
                    that passes it on. Default: none
  -users FILE       who may log in, with passwords and tokens as hashes and a role
                    each: viewer, owner or admin. It is read again when it changes
  -proxy CIDR       where requests of a proxy come from that says in the headers
                    X-Forwarded-User and X-Forwarded-Groups who asks, such as
                    oauth2-proxy. May be given more than once
  -proxy-host HOST  a name under which browsers ask for the page, if the proxy
                    passes it on. May be given more than once. Default: localhost
                    and every address
  -proxy-admin NAME
                    a group of the proxy whose members are admins; user:NAME is a
                    person. May be given more than once. Others are owners: they
                    see all, and act in scopes that they, or a group of theirs, own
  -proxy-viewer NAME
                    a group, or user:NAME, that only sees. May be given more than
                    once
  -log-level LEVEL  debug, info, warn or error. Default: info
  -log-format FORM  text or json, on stderr. Default: text
  -h                print this

Exit codes: 0 stopped by a signal, 1 something failed, 2 bad usage, 130 killed.

Examples:
  worker page
  worker page -listen 10.0.0.5:9091 -users users.yaml
  worker page -listen :9091 -proxy 127.0.0.1/32 -proxy-admin team-platform
`

// pageCommand is one run of "worker page".
type pageCommand struct {
	redis, listen, prefix, users string
	networks, hosts              []string
	admins, viewers              []string
	level, logFormat             string

	addr  listenAddr
	proxy *page.Proxy
}

// newPage returns the command "worker page", and what it reads.
func newPage() (*cli.Command, *pageCommand) {
	c, p := cli.NewCommand(prog+" page", pageUsage), &pageCommand{}
	c.Mixed, c.About, c.Words = true, "serve the page", []string{"hash", "token"}
	c.Flags.StringVar(&p.redis, "redis", "", "")
	c.Flags.StringVar(&p.listen, "listen", ":9091", "")
	c.Flags.StringVar(&p.prefix, "prefix", "", "")
	cli.FileVar(c.Flags, &p.users, "users")
	cli.ListVar(c.Flags, &p.networks, "proxy", nil)
	cli.ListVar(c.Flags, &p.hosts, "proxy-host", nil)
	cli.ListVar(c.Flags, &p.admins, "proxy-admin", nil)
	cli.ListVar(c.Flags, &p.viewers, "proxy-viewer", nil)
	cli.ChoiceVar(c.Flags, &p.level, "log-level", "info", "debug", "info", "warn", "error")
	cli.ChoiceVar(c.Flags, &p.logFormat, "log-format", "text", "text", "json")
	return c, p
}

// runPage is the program "worker page".
func runPage(ctx context.Context, args []string, getenv func(string) string, stdout, stderr io.Writer) int {
	c, p := newPage()
	words, code, done := c.Parse(args, getenv, stdout, stderr)
	if done {
		return code
	}
	if len(words) > 0 {
		return runSecret(c, words, stdout, stderr)
	}
	o := options{logFormat: p.logFormat}
	var fault error
	o.logLevel, fault = parseLevel(p.level)
	if err := errors.Join(p.check(), fault); err != nil {
		c.Fail(stderr, c.Name, err)
		return cli.ExitUsage
	}
	log := newLogger(stderr, o)
	cli.RouteRedisLog(log)
	if err := p.serve(ctx, log); err != nil && ctx.Err() == nil {
		c.Fail(stderr, c.Name, err)
		return cli.Code(err)
	}
	return cli.ExitOK
}

// runSecret makes a hash or a token.
func runSecret(c *cli.Command, words []string, stdout, stderr io.Writer) int {
	var err error = cli.Errorf("worker page -h", "unexpected argument %q: worker page takes flags, or hash or token alone", words[0])
	code := cli.ExitUsage
	switch {
	case len(words) == 1 && words[0] == "token":
		token, hash := page.NewToken()
		code = cli.ExitFailed
		_, err = fmt.Fprintf(stdout, "token   %s\nsha256  %s\n", token, hash)
	case len(words) == 1 && words[0] == "hash":
		code = cli.ExitFailed
		var password, hash string
		if password, err = readPassword(stderr); err == nil {
			if hash, err = page.HashPassword(password); err == nil {
				_, err = fmt.Fprintln(stdout, hash)
			} else {
				err = &cli.Error{What: strings.TrimPrefix(err.Error(), "page: "), Try: "worker page hash, with another password", Err: err}
			}
		}
	}
	if err != nil {
		c.Fail(stderr, c.Name, err)
		return code
	}
	return cli.ExitOK
}

// readPassword reads a line from stdin; from a terminal, without showing it.
func readPassword(prompt io.Writer) (string, error) {
	if in := int(os.Stdin.Fd()); term.IsTerminal(in) {
		_, _ = fmt.Fprint(prompt, "password: ")
		password, err := term.ReadPassword(in)
		_, _ = fmt.Fprintln(prompt)
		return string(password), err
	}
	line, err := bufio.NewReader(io.LimitReader(os.Stdin, 4096)).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return "", err
	}
	return strings.TrimRight(line, "\r\n"), nil
}

// check reads the flags.
func (p *pageCommand) check() (err error) {
	if p.addr, err = parseAddr(p.listen); err != nil {
		return err
	}
	if p.prefix != "" && (!strings.HasPrefix(p.prefix, "/") || strings.HasSuffix(p.prefix, "/")) {
		return cli.Errorf("-prefix /limits", "-prefix %q does not begin with a slash, or ends with one", p.prefix)
	}
	if len(p.networks) > 0 {
		p.proxy = &page.Proxy{Hosts: p.hosts, Admins: p.admins, Viewers: p.viewers}
	} else if len(p.hosts)+len(p.admins)+len(p.viewers) > 0 {
		return cli.Errorf("-proxy 127.0.0.1/32 -proxy-admin NAME", "-proxy-host, -proxy-admin and -proxy-viewer need -proxy")
	}
	for _, text := range p.networks {
		network, err := netip.ParsePrefix(text)
		if err != nil {
			return cli.Errorf("-proxy 127.0.0.1/32", "-proxy %q is no range of addresses such as 10.0.0.0/8", text)
		}
		p.proxy.Networks = append(p.proxy.Networks, network)
	}
	if !p.addr.loopback && p.users == "" && p.proxy == nil {
		return cli.Errorf("-users users.yaml, or -proxy CIDR, or -listen 127.0.0.1:9091 for this machine only",
			"-listen %s can be reached by other machines, and neither -users nor -proxy says who may", p.listen)
	}
	return nil
}

// serve serves the page until ctx ends.
func (p *pageCommand) serve(ctx context.Context, log *slog.Logger) error {
	url := cmp.Or(p.redis, cli.EmbeddedURL)
	rdb, err := cli.OpenRedis(ctx, url)
	if err != nil {
		return err
	}
	defer func() { _ = rdb.Close() }() // nothing is in flight any more
	cfg := page.Config{Redis: rdb, Prefix: p.prefix, Proxy: p.proxy, Logger: log, Version: cli.Version()}
	if err := allow(&cfg, p.users); err != nil {
		return err
	}
	handler, err := page.New(cfg)
	if err != nil {
		return err
	}
	defer handler.Close()
	ln, err := net.Listen("tcp", p.addr.addr)
	if err != nil {
		return listenError(err, p.addr.addr, "-listen", "another page? -listen another port, or stop what listens there")
	}
	server := &http.Server{
		Handler: handler, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 30 * time.Second, WriteTimeout: 30 * time.Second,
		IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 32 << 10, ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	log.InfoContext(ctx, "the page is ready", "url", "http://"+ln.Addr().String()+p.prefix+"/", "redis", cli.RedisName(url))
	if err := server.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("the page has ended: %w", err)
	}
	return nil
}

// allow says who may use the page: those of a file, those of a proxy, or without either who is on this machine.
func allow(cfg *page.Config, users string) (err error) {
	if users != "" {
		if cfg.Users, err = page.LoadUsers(users); err != nil {
			return &cli.Error{What: strings.ReplaceAll(err.Error(), "page: ", ""), Try: "correct " + users + "; worker page hash makes a password's hash", Err: err}
		}
	}
	if cfg.Users == nil && cfg.Proxy == nil {
		cfg.Local = "local"
		if one, err := user.Current(); err == nil && one.Username != "" {
			cfg.Local = one.Username
		}
	}
	return nil
}

// closePage ends the changes that the page of a worker has under way.
func closePage(shown http.Handler) {
	if p, is := shown.(*page.Page); is {
		p.Close()
	}
}

// pagePath is where a worker with -page has it.
const pagePath = "/page"

// workerPage is the page of a worker with -page, nil without.
func workerPage(rdb redis.UniversalClient, o options, limits *worker.Limits, schedules []*schedule.Schedule) (http.Handler, error) {
	if !o.page {
		return nil, nil
	}
	cfg := page.Config{
		Redis: rdb, Limiter: limits.Limiter(), Prefix: pagePath, Schedules: schedules, Logger: limits.Logger(), Version: cli.Version(),
	}
	if err := allow(&cfg, o.pageUsers); err != nil {
		return nil, err
	}
	return page.New(cfg)
}
