package redisopen

import (
	"cmp"
	"crypto/tls"
	"errors"
	"net"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/headway-go/headway/internal/diag"
)

// Where a worker's embedded server listens, and the URL that reaches it.
const (
	EmbeddedAddr = "127.0.0.1:6390"
	EmbeddedURL  = "redis://" + EmbeddedAddr
)

// target is a Redis URL taken apart. One of the three options is set.
type target struct {
	name     string // host:port, socket or master: what an error may show
	user     string
	password string
	tls      bool

	single   *redis.Options
	sentinel *redis.FailoverOptions
	cluster  *redis.ClusterOptions
}

const (
	tryURL = "-redis redis://[USER:PASSWORD@]HOST:PORT[/DB], rediss://…, unix:///path/redis.sock, " +
		"redis-sentinel://HOST:PORT,HOST:PORT/DB?master=NAME or redis+cluster://HOST:PORT?addr=HOST:PORT"
	tryEscape = "percent-encode special characters in the user name and password: @ is %40, / is %2F, : is %3A, " +
		"# is %23, ? is %3F, % is %25"

	// dials is how often go-redis dials before a command fails, and then the command itself is tried again.
	// Its own five, nested once more for Sentinel, make a refused connection take longer than Timeout.
	dials = 1
	// slotsAge bounds the age of a cluster client's map of slots, while there are commands. A master that is
	// gone does not say that another took over, and go-redis would go on dialling it for a minute.
	slotsAge = 2 * time.Second
)

// urlParts are scheme://userinfo@hosts/path?query. They are cut by hand: net/url refuses lists of hosts, and
// its errors quote the text they stumble on, which may be a password.
var urlParts = regexp.MustCompile(`^([A-Za-z][A-Za-z+-]*)://(?:([^/?#\s]*)@)?([^@/?#\s]*)(?:/([^@?#\s]*))?(?:\?([^@#\s]*))?$`)

func parseRedisURL(raw string) (t *target, err error) {
	if raw = strings.TrimSpace(raw); raw == "embedded" {
		raw = EmbeddedURL
	}
	scheme, _, found := strings.Cut(raw, "://")
	m := urlParts.FindStringSubmatch(raw)
	switch {
	case !found || scheme == "" || strings.ContainsAny(scheme, "@:/?#"):
		return nil, diag.Errorf(tryURL, "the Redis URL has no scheme, such as redis://")
	case m == nil:
		return nil, diag.Errorf(tryEscape, "the Redis URL cannot be read: a #, an @ or white space stands where none can")
	}
	user, password, _ := strings.Cut(m[2], ":")
	t = &target{tls: strings.HasPrefix(strings.ToLower(scheme), "rediss")}
	var badUser, badPassword error
	t.user, badUser = url.PathUnescape(user)
	t.password, badPassword = url.PathUnescape(password)
	query, badQuery := url.ParseQuery(m[5])
	if badUser != nil || badPassword != nil || badQuery != nil {
		return nil, diag.Errorf(tryEscape, "the user name, the password or the options in the Redis URL cannot be decoded")
	}
	switch hosts, path := m[3], m[4]; strings.Replace(strings.Replace(strings.ToLower(scheme), "rediss", "redis", 1), "+", "-", 1) {
	case "redis":
		err = t.parseSingle(hosts, path, query)
	case "unix", "redis-socket":
		err = t.parseSocket(hosts, path, query)
	case "redis-sentinel":
		err = t.parseSentinel(hosts, path, query)
	case "redis-cluster":
		err = t.parseCluster(hosts, path, query)
	default:
		err = diag.Errorf(tryURL, "the Redis URL has the unknown scheme %q", scheme)
	}
	return t, err
}

// plain returns a URL that go-redis parses, free of credentials so that its errors are free of them too.
func (t *target) plain(addr, path string, query url.Values) string {
	scheme := "redis"
	if t.tls {
		scheme = "rediss"
	}
	return scheme + "://" + addr + "/" + path + "?" + query.Encode()
}

// refused says what go-redis did not like about a URL without credentials.
func refused(err error) error {
	if parse, is := errors.AsType[*url.Error](err); is {
		err = parse.Err
	}
	return &diag.Error{What: "the Redis URL: " + strings.TrimPrefix(err.Error(), "redis: "), Try: tryURL, Err: err}
}

func (t *target) parseSingle(hosts, path string, query url.Values) error {
	addrs, err := addresses(hosts, "6379")
	if err != nil {
		return err
	}
	if len(addrs) > 1 {
		return diag.Errorf("redis+cluster://… for a cluster, redis-sentinel://…?master=NAME for Sentinel",
			"a redis:// URL names one server, this one names %d", len(addrs))
	}
	return t.parseOptions(t.plain(addrs[0], path, query))
}

func (t *target) parseSocket(hosts, path string, query url.Values) error {
	if hosts != "" || path == "" {
		return diag.Errorf("-redis unix:///var/run/redis.sock?db=0", "the URL of a socket needs three slashes and its path")
	}
	return t.parseOptions("unix:///" + path + "?" + query.Encode())
}

func (t *target) parseOptions(plain string) error {
	opt, err := redis.ParseURL(plain)
	if err != nil {
		return refused(err)
	}
	opt.Username, opt.Password = t.user, t.password
	opt.ContextTimeoutEnabled = true
	opt.DialerRetries = dials
	opt.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled} // only one managed Redis answers it
	t.name, t.single = opt.Addr, opt
	return checkDB(opt.DB)
}

// parseSentinel reads credentials as asynq and go-redis do: what stands before @ is for the sentinels,
// ?username= and ?password= are for the master.
func (t *target) parseSentinel(hosts, path string, query url.Values) error {
	addrs, err := addresses(hosts, "26379")
	if err != nil {
		return err
	}
	master := cmp.Or(query.Get("master"), query.Get("master_name"))
	if master == "" {
		return diag.Errorf("-redis redis-sentinel://HOST:26379,HOST:26379/0?master=mymaster", "the redis-sentinel URL names no master")
	}
	query.Del("master")
	query.Set("master_name", master)
	opt, err := redis.ParseFailoverURL(t.plain(addrs[0], path, query))
	if err != nil {
		return refused(err)
	}
	if opt.RouteByLatency || opt.RouteRandomly || opt.ReplicaOnly {
		return errReplicas
	}
	opt.SentinelAddrs = append(opt.SentinelAddrs, addrs[1:]...)
	opt.SentinelUsername, opt.SentinelPassword = t.user, t.password
	t.user, t.password = opt.Username, opt.Password
	opt.ContextTimeoutEnabled = true
	opt.DialerRetries = dials
	t.name, t.sentinel = "master "+strconv.Quote(master)+" of sentinels "+strings.Join(opt.SentinelAddrs, ","), opt
	return checkDB(opt.DB)
}

func (t *target) parseCluster(hosts, path string, query url.Values) error {
	if path != "" && path != "0" {
		return diag.Errorf("leave the path out of the URL", "Redis Cluster has database 0 only")
	}
	addrs, err := addresses(hosts, "6379")
	if err != nil {
		return err
	}
	opt, err := redis.ParseClusterURL(t.plain(addrs[0], "", query))
	if err != nil {
		return refused(err)
	}
	if opt.ReadOnly || opt.RouteByLatency || opt.RouteRandomly {
		return errReplicas
	}
	opt.Addrs = append(opt.Addrs, addrs[1:]...)
	opt.Username, opt.Password = t.user, t.password
	opt.ContextTimeoutEnabled = true
	opt.DialerRetries = dials
	opt.ClusterStateReloadInterval = slotsAge
	opt.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	if opt.TLSConfig != nil {
		opt.TLSConfig.MinVersion = tls.VersionTLS12
	}
	t.name, t.cluster = "cluster "+strings.Join(opt.Addrs, ","), opt
	return nil
}

var errReplicas = diag.Errorf("leave read_only, replica_only, route_by_latency and route_randomly out",
	"the Redis URL asks for replicas, but limits are decided on masters")

func checkDB(db int) error {
	if db < 0 {
		return diag.Errorf(tryURL, "the Redis URL has the database number %d, which is below 0", db)
	}
	return nil
}

// addresses returns HOST, HOST:PORT or [IPv6]:PORT of a list as host:port, with port where none is given. Its
// errors quote nothing: what stands at the place of a port may be a password whose host was forgotten.
func addresses(hosts, port string) (addrs []string, err error) {
	for text := range strings.SplitSeq(hosts, ",") {
		host, given, err := net.SplitHostPort(text)
		switch {
		case err != nil && strings.Contains(text, ":") && !strings.HasPrefix(text, "["):
			return nil, diag.Errorf(tryURL, "the Redis URL has a host that is not HOST:PORT (IPv6 addresses need brackets)")
		case err != nil:
			host, given = strings.Trim(text, "[]"), port
		}
		if n, err := strconv.Atoi(given); err != nil || n < 1 || n > 65535 {
			return nil, diag.Errorf(tryURL, "the Redis URL has a port that is not a number from 1 to 65535")
		}
		addrs = append(addrs, net.JoinHostPort(cmp.Or(host, "localhost"), given))
	}
	return addrs, nil
}

// client makes the client, with as many connections to a server as size says unless the URL does. Options too
// large for go-redis make it panic.
func (t *target) client(size int) (rdb redis.UniversalClient, err error) {
	defer func() {
		if r := recover(); r != nil {
			rdb, err = nil, diag.Errorf(tryURL, "the Redis URL has an option that is out of range")
		}
	}()
	switch {
	case t.single != nil:
		t.single.PoolSize = cmp.Or(t.single.PoolSize, size)
		return redis.NewClient(t.single), nil
	case t.sentinel != nil:
		t.sentinel.PoolSize = cmp.Or(t.sentinel.PoolSize, size)
		return redis.NewFailoverClient(t.sentinel), nil
	}
	t.cluster.PoolSize = cmp.Or(t.cluster.PoolSize, size)
	return redis.NewClusterClient(t.cluster), nil
}
