//! The SDK's clients: one for each runtime, as a connection belongs to the runtime that made it.

use std::{
    sync::{Arc, PoisonError, RwLock},
    time::Duration,
};

use aws_config::BehaviorVersion;
use aws_sdk_dynamodb::{
    Client,
    config::{
        ConfigBag, Intercept, Region, RuntimeComponents, SharedHttpClient, StalledStreamProtectionConfig,
        interceptors::{BeforeDeserializationInterceptorContextRef, BeforeTransmitInterceptorContextRef},
        retry::RetryConfig,
        timeout::TimeoutConfig,
    },
    error::BoxError,
    primitives::{DateTime, DateTimeFormat},
};
use aws_smithy_http_client::{
    Builder,
    tls::{Provider, rustls_provider::CryptoMode},
};
use aws_smithy_types::config_bag::{Storable, StoreReplace};
use lockcore::backend::{Moment, ServiceClock};
use tokio::runtime::{Handle, Id};

use crate::{config::Settings, error::StoreError};

/// The most runtimes whose clients are kept.
const KEPT: usize = 16;

/// An instance answers at once where its region is.
const REGION_WITHIN: Duration = Duration::from_secs(2);

/// Clients of the service, by runtime.
#[derive(Debug)]
pub(crate) struct Clients {
    config: aws_sdk_dynamodb::Config,
    plain: bool,
    clients: RwLock<Vec<(Id, Arc<Client>)>>,
    #[cfg(feature = "testing")]
    pub(crate) meter: Arc<crate::testing::Meter>,
    #[cfg(feature = "testing")]
    simulated: Option<SharedHttpClient>,
}

impl Clients {
    /// Finds region, credentials and endpoint by the SDK's usual chain, where the settings name none; also tells where the
    /// service is, for people.
    pub(crate) async fn new(settings: &Settings) -> Result<(Self, Arc<ServiceClock>, String), StoreError> {
        let plain = |endpoint: &str| endpoint.starts_with("http://");
        let mut loader = aws_config::defaults(BehaviorVersion::v2026_01_12()).http_client(http_client(false));
        #[cfg(feature = "testing")]
        {
            loader = settings.hooks.load(loader);
        }
        if let Some(region) = &settings.region {
            loader = loader.region(Region::new(region.clone()));
        }
        if let Some(profile) = &settings.profile {
            loader = loader.profile_name(profile);
        }
        if let Some(credentials) = &settings.credentials {
            loader = loader.credentials_provider(credentials.clone());
        }
        if let Some(endpoint) = &settings.endpoint {
            loader = loader.endpoint_url(endpoint);
        }
        // The instance's metadata service takes time, which is asked last for a region: the SDK asks one that there is
        // not for many seconds.
        let shared = match settings.region {
            Some(_) => Some(Box::pin(loader.load()).await),
            None => tokio::time::timeout(REGION_WITHIN, Box::pin(loader.load())).await.ok(),
        };
        let Some((shared, region)) =
            shared.and_then(|shared| Some((shared.clone(), shared.region()?.to_string())))
        else {
            return Err(StoreError::NoRegion);
        };
        let endpoint = shared.endpoint_url().map(str::to_owned);
        let place = endpoint.as_deref().unwrap_or(&region);
        #[cfg(not(feature = "testing"))]
        let clock = ServiceClock::of(place);
        #[cfg(feature = "testing")]
        let clock = settings.hooks.clock(place);
        let timeouts = TimeoutConfig::builder()
            .connect_timeout(settings.attempt_timeout.min(Duration::from_secs(1)))
            .operation_attempt_timeout(settings.attempt_timeout)
            .build();
        let config = aws_sdk_dynamodb::config::Builder::from(&shared)
            // This crate repeats requests itself, as it has to know which answers were lost.
            .retry_config(RetryConfig::disabled())
            .timeout_config(timeouts)
            .stalled_stream_protection(StalledStreamProtectionConfig::disabled())
            .interceptor(Dates { clock: clock.clone() });
        #[cfg(feature = "testing")]
        let meter = Arc::default();
        #[cfg(feature = "testing")]
        let config = settings.hooks.configure(config, &meter);
        let location = match &endpoint {
            Some(endpoint) => format!("at {}", host(endpoint)),
            None => format!("in {region}"),
        };
        let plain = endpoint.as_deref().is_some_and(plain);
        let clients = Clients {
            config: config.build(),
            plain,
            clients: RwLock::new(Vec::new()),
            #[cfg(feature = "testing")]
            meter,
            #[cfg(feature = "testing")]
            simulated: settings.hooks.simulated(),
        };
        Ok((clients, clock, location))
    }

    /// The client of the current runtime.
    pub(crate) fn current(&self) -> Result<Arc<Client>, StoreError> {
        let id = Handle::try_current().map_err(|_| StoreError::NoRuntime)?.id();
        let of = |clients: &[(Id, Arc<Client>)]| {
            clients.iter().find(|(of, _)| *of == id).map(|(_, client)| client.clone())
        };
        if let Some(client) = of(&self.clients.read().unwrap_or_else(PoisonError::into_inner)) {
            return Ok(client);
        }
        let mut clients = self.clients.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(client) = of(&clients) {
            return Ok(client);
        }
        let http = http_client(self.plain);
        #[cfg(feature = "testing")]
        let http = self.simulated.clone().unwrap_or(http);
        let config = self.config.to_builder().http_client(http).build();
        let client = Arc::new(Client::from_conf(config));
        if clients.len() >= KEPT {
            clients.remove(0); // its requests under way keep it
        }
        clients.push((id, client.clone()));
        Ok(client)
    }
}

/// Scheme, host and port of a URL: what else it has may be secret.
fn host(url: &str) -> String {
    let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    format!("{scheme}://{}", authority.rsplit('@').next().unwrap_or_default())
}

/// A client with connections of its own; without TLS where only a plain endpoint is asked.
fn http_client(plain: bool) -> SharedHttpClient {
    if plain {
        return Builder::new().build_http();
    }
    Builder::new().tls_provider(Provider::Rustls(CryptoMode::Ring)).build_https()
}

/// Reads the service's time from every answer of its own.
#[derive(Debug)]
struct Dates {
    clock: Arc<ServiceClock>,
}

#[derive(Debug)]
struct Sent(Moment);

impl Storable for Sent {
    type Storer = StoreReplace<Self>;
}

#[aws_smithy_runtime_api::client::interceptors::dyn_dispatch_hint]
impl Intercept for Dates {
    fn name(&self) -> &'static str {
        "lockcore::Dates"
    }

    fn read_before_transmit(
        &self,
        _context: &BeforeTransmitInterceptorContextRef<'_>,
        _components: &RuntimeComponents,
        config: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        config.interceptor_state().store_put(Sent(Moment::now()));
        Ok(())
    }

    fn read_before_deserialization(
        &self,
        context: &BeforeDeserializationInterceptorContextRef<'_>,
        _components: &RuntimeComponents,
        config: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        let headers = context.response().headers();
        if ServiceClock::is_dated_by_service(&["x-amzn-requestid"], |name| headers.contains_key(name))
            && let (Some(sent), Some(date)) = (config.load::<Sent>(), headers.get("date"))
            && let Ok(date) = DateTime::from_str(date, DateTimeFormat::HttpDate)
            && let Ok(seconds) = u64::try_from(date.secs())
        {
            self.clock.sample(sent.0, Moment::now(), seconds);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_an_endpoint_scheme_host_and_port_are_shown() {
        for (url, shown) in [
            ("http://127.0.0.1:8000", "http://127.0.0.1:8000"),
            ("https://user:p@ss@host:1/path?key=secret#x", "https://host:1"),
            ("https://host?key=user@secret", "https://host"),
        ] {
            assert_eq!(host(url), shown);
        }
    }
}
