//! Hooks and meters for tests and benchmarks, outside the stability promise.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, SystemTime},
};

use aws_config::ConfigLoader;
use aws_sdk_dynamodb::{
    config::{
        Builder, ConfigBag, Intercept, RuntimeComponents, SharedHttpClient,
        interceptors::{AfterDeserializationInterceptorContextRef, BeforeSerializationInterceptorContextMut},
    },
    error::BoxError,
    operation::{
        batch_get_item::{BatchGetItemInput, BatchGetItemOutput},
        get_item::{GetItemInput, GetItemOutput},
        scan::{ScanInput, ScanOutput},
        transact_write_items::{TransactWriteItemsInput, TransactWriteItemsOutput},
        update_item::{UpdateItemInput, UpdateItemOutput},
    },
    types::{ConsumedCapacity, ReturnConsumedCapacity},
};
use aws_smithy_async::time::{StaticTimeSource, TimeSource};
use aws_smithy_runtime_api::client::interceptors::context::Output;
use lockcore::backend::ServiceClock;

/// Ways in which a DAO acts otherwise than in a program.
#[derive(Clone, Default)]
pub(crate) struct Hooks {
    pub(crate) own_clock: bool,
    /// Seconds by which this machine's wall clock seems to be ahead.
    pub(crate) ahead: i64,
    /// Microseconds by which the service's clock seems to be ahead.
    pub(crate) service_ahead: Arc<AtomicU64>,
    /// The client that takes the place of the network, and the time of all signatures.
    pub(crate) simulated: Option<(SharedHttpClient, SystemTime)>,
}

impl Hooks {
    pub(crate) fn service_ahead(&self) -> u64 {
        self.service_ahead.load(Relaxed)
    }

    pub(crate) fn clock(&self, endpoint: &str) -> Arc<ServiceClock> {
        if self.own_clock { Arc::new(ServiceClock::new()) } else { ServiceClock::of(endpoint) }
    }

    /// Returns what takes the place of the network.
    pub(crate) fn simulated(&self) -> Option<SharedHttpClient> {
        self.simulated.as_ref().map(|(client, _)| client.clone())
    }

    /// Leaves out the environment and the wall clock where the service is simulated.
    pub(crate) fn load(&self, loader: ConfigLoader) -> ConfigLoader {
        match &self.simulated {
            Some((client, time)) => {
                let time = StaticTimeSource::new(*time);
                loader.empty_test_environment().http_client(client.clone()).time_source(time)
            }
            None => loader,
        }
    }

    pub(crate) fn configure(&self, config: Builder, meter: &Arc<Meter>) -> Builder {
        let config = config.interceptor(Metering(meter.clone()));
        if self.ahead == 0 { config } else { config.time_source(Ahead(self.ahead)) }
    }
}

/// The requests so far, and the units that the service counted for them.
#[doc(hidden)]
#[derive(Clone, Copy, PartialEq, Default, Debug)]
pub struct Usage {
    /// Requests that read or write items, every try counted.
    pub requests: u64,
    /// Write units, where the service was asked to count; of requests that it did not refuse.
    pub write_units: f64,
    /// Read units, likewise.
    pub read_units: f64,
}

/// The counts of a DAO.
#[derive(Default, Debug)]
pub(crate) struct Meter {
    requests: AtomicU64,
    /// Set where the service is asked to count.
    units: Mutex<Option<Usage>>,
}

impl Meter {
    /// Returns the counts so far.
    pub(crate) fn usage(&self) -> Usage {
        let units = self.units.lock().unwrap_or_else(PoisonError::into_inner);
        Usage { requests: self.requests.load(Relaxed), ..units.unwrap_or_default() }
    }

    /// Makes the service return the units of every request from now on.
    pub(crate) fn count_units(&self) {
        self.units.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_default();
    }
}

/// Counts the requests on items as the SDK sends them.
#[derive(Debug)]
struct Metering(Arc<Meter>);

impl Metering {
    fn units(&self) -> std::sync::MutexGuard<'_, Option<Usage>> {
        self.0.units.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[aws_smithy_runtime_api::client::interceptors::dyn_dispatch_hint]
impl Intercept for Metering {
    fn name(&self) -> &'static str {
        "lockcore::Metering"
    }

    fn modify_before_serialization(
        &self,
        context: &mut BeforeSerializationInterceptorContextMut<'_>,
        _components: &RuntimeComponents,
        _config: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        let (input, asked) = (context.input_mut(), self.units().map(|_| ReturnConsumedCapacity::Total));
        let set =
            |setting: Option<&mut Option<_>>| setting.map(|setting| setting.clone_from(&asked)).is_some();
        let is_of_items = set(input
            .downcast_mut()
            .map(|of: &mut UpdateItemInput| &mut of.return_consumed_capacity))
            || set(input
                .downcast_mut()
                .map(|of: &mut TransactWriteItemsInput| &mut of.return_consumed_capacity))
            || set(input.downcast_mut().map(|of: &mut GetItemInput| &mut of.return_consumed_capacity))
            || set(input.downcast_mut().map(|of: &mut BatchGetItemInput| &mut of.return_consumed_capacity))
            || set(input.downcast_mut().map(|of: &mut ScanInput| &mut of.return_consumed_capacity));
        self.0.requests.fetch_add(u64::from(is_of_items), Relaxed);
        Ok(())
    }

    fn read_after_deserialization(
        &self,
        context: &AfterDeserializationInterceptorContextRef<'_>,
        _components: &RuntimeComponents,
        _config: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        if let (Ok(output), Some(usage)) = (context.output_or_error(), &mut *self.units()) {
            let (written, read) = consumed(output);
            let units = written.iter().map(|of| of.write_capacity_units().or(of.capacity_units()));
            usage.write_units += units.flatten().sum::<f64>();
            let units = read.iter().map(|of| of.read_capacity_units().or(of.capacity_units()));
            usage.read_units += units.flatten().sum::<f64>();
        }
        Ok(())
    }
}

/// Returns what a request consumed by writing, and by reading.
fn consumed(output: &Output) -> (&[ConsumedCapacity], &[ConsumedCapacity]) {
    if let Some(output) = output.downcast_ref::<UpdateItemOutput>() {
        return (output.consumed_capacity.as_slice(), &[]);
    }
    if let Some(output) = output.downcast_ref::<TransactWriteItemsOutput>() {
        return (output.consumed_capacity(), &[]);
    }
    if let Some(output) = output.downcast_ref::<GetItemOutput>() {
        return (&[], output.consumed_capacity.as_slice());
    }
    if let Some(output) = output.downcast_ref::<BatchGetItemOutput>() {
        return (&[], output.consumed_capacity());
    }
    let scanned = output.downcast_ref::<ScanOutput>();
    (&[], scanned.map_or(&[], |output| output.consumed_capacity.as_slice()))
}

/// A wall clock that is wrong.
#[derive(Debug)]
struct Ahead(i64);

impl TimeSource for Ahead {
    fn now(&self) -> SystemTime {
        let by = Duration::from_secs(self.0.unsigned_abs());
        if self.0 > 0 { SystemTime::now() + by } else { SystemTime::now() - by }
    }
}
