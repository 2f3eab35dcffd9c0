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

	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/headway-go/headway/cmd/internal/cli"
	"github.com/headway-go/headway/queue/schedule"
	"github.com/headway-go/headway/worker"
	"github.com/headway-go/headway/worker/page"
)

const pageLong = `Serves a page that shows which tasks wait, for what and until when, and that changes
limits. It works with any number of workers, and needs none on this machine. It reads
Redis once a second for all viewers together, and not at all without a viewer.

On this machine every visitor is an admin. Any address that is not loopback needs -users
or -proxy.`

// pageCommand is one run of "worker page".
type pageCommand struct {
	redis, listen, prefix, users string
	networks, hosts              []string
	admins, viewers              []string
	level, logFormat             string

	addr  listenAddr
	proxy *page.Proxy
}

func newPage() *cobra.Command {
	p := &pageCommand{}
	c := &cobra.Command{
		Use: "page", Short: "Serve a page that shows and steers all of it", Long: pageLong, Args: cli.Args(0, 0),
		Example: `  worker page
  worker page -listen 10.0.0.5:9091 -users users.yaml
  worker page -listen :9091 -proxy 127.0.0.1/32 -proxy-admin team-platform`,
		RunE: func(c *cobra.Command, _ []string) error {
			level, fault := parseLog(p.level, p.logFormat)
			if err := errors.Join(p.check(), fault); err != nil {
				return cli.Usage(err)
			}
			log := newLogger(c.ErrOrStderr(), level, p.logFormat)
			cli.RouteRedisLog(log)
			if err := p.serve(c.Context(), log); err != nil && c.Context().Err() == nil {
				return err
			}
			return nil
		},
	}
	fs := c.Flags()
	fs.StringVar(&p.redis, "redis", "", "`URL` of Redis. Default: REDIS_URL from the environment, else the embedded server of a worker on "+cli.EmbeddedAddr)
	fs.StringVar(&p.listen, "listen", ":9091", "serve on `ADDR`, on 127.0.0.1 if it names no host")
	fs.StringVar(&p.prefix, "prefix", "", "the `PATH` below which the page is, such as /limits, for a proxy that passes it on")
	fs.StringVar(&p.users, "users", "", "`FILE` of the users that may log in, each with a role (viewer, owner or admin) and the hash of a password or token. It is read again when it changes")
	fs.StringArrayVar(&p.networks, "proxy", nil, "`CIDR` of a proxy that names the user in the headers X-Forwarded-User and X-Forwarded-Groups, such as oauth2-proxy. May be repeated")
	fs.StringArrayVar(&p.hosts, "proxy-host", nil, "`HOST` that browsers use for the page, if the proxy passes it on. May be repeated. Default: localhost and every address")
	fs.StringArrayVar(&p.admins, "proxy-admin", nil, "group `NAME` of the proxy whose members are admins; user:NAME is a person. May be repeated. Other users are owners: they see all, and "+
		"act in the scopes that they or their groups own")
	fs.StringArrayVar(&p.viewers, "proxy-viewer", nil, "group `NAME`, or user:NAME, that sees all and changes nothing. May be repeated")
	logFlags(c, &p.level, &p.logFormat)
	c.AddCommand(
		&cobra.Command{
			Use: "hash", Short: "Read a password, without showing it, and print its hash for a users file", Args: cli.Args(0, 0),
			RunE: func(c *cobra.Command, _ []string) error {
				password, err := readPassword(c.ErrOrStderr())
				if err != nil {
					return err
				}
				hash, err := page.HashPassword(password)
				if err != nil {
					return cli.Errorf("worker page hash, with another password", "%s", strings.TrimPrefix(err.Error(), "page: "))
				}
				_, _ = fmt.Fprintln(c.OutOrStdout(), hash)
				return nil
			},
		},
		&cobra.Command{
			Use: "token", Short: "Print a new token, and its hash for a users file", Args: cli.Args(0, 0),
			RunE: func(c *cobra.Command, _ []string) error {
				token, hash := page.NewToken()
				_, _ = fmt.Fprintf(c.OutOrStdout(), "token   %s\nsha256  %s\n", token, hash)
				return nil
			},
		},
	)
	return c
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
	cfg := page.Config{Redis: rdb, Prefix: p.prefix, Proxy: p.proxy, Logger: log}
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
	server := newServer(handler, log)
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	log.InfoContext(ctx, "the page is ready", "url", "http://"+ln.Addr().String()+p.prefix+"/", "redis", cli.RedisName(url))
	if err := server.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("the page has ended: %w", err)
	}
	return nil
}

// allow lets in the users of a file or of a proxy. Without either, it lets in every visitor from this machine.
func allow(cfg *page.Config, users string) (err error) {
	if users != "" {
		if cfg.Users, err = page.LoadUsers(users); err != nil {
			return &cli.Error{What: strings.ReplaceAll(err.Error(), "page: ", ""), Try: "correct " + users + "; worker page hash makes a password's hash", Err: err}
		}
	}
	if cfg.Users == nil && cfg.Proxy == nil {
		cfg.Local = "local"
		if u, err := user.Current(); err == nil && u.Username != "" {
			cfg.Local = u.Username
		}
	}
	return nil
}

// pagePath is the path of the page in a worker with -page.
const pagePath = "/page"

// workerPage returns the page of a worker, nil without -page, and a function that closes it.
func workerPage(rdb redis.UniversalClient, o options, limits *worker.Limits, schedules []*schedule.Schedule) (http.Handler, func(), error) {
	if !o.page {
		return nil, func() {}, nil
	}
	cfg := page.Config{Redis: rdb, Limiter: limits.Limiter(), Prefix: pagePath, Schedules: schedules, Logger: limits.Logger()}
	if err := allow(&cfg, o.pageUsers); err != nil {
		return nil, nil, err
	}
	shown, err := page.New(cfg)
	if err != nil {
		return nil, nil, err
	}
	return shown, shown.Close, nil
}
